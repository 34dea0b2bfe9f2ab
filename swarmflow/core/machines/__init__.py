"""The machines of peer, leader and trainer: every exchange, put together."""
