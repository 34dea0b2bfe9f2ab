"""What a swarm learns beside one process, with and without shared blocks (SWARM, 4.3, in small)."""
