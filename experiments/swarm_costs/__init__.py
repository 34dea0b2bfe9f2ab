"""What it costs to train ALBERT in a swarm of preemptible machines (SWARM, appendix K)."""
