"""How well peers spread over the stages while they come and go (SWARM, 4.4 and appendix I)."""
