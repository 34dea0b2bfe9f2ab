"""How busy the network leaves the devices: the square-cube law, and utilisation by latency (SWARM, 3.1 and 4.1)."""
