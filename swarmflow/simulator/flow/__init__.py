"""Pretended negotiations of flows: in rounds, and with delays, losses and deaths."""
