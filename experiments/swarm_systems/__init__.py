"""Fixed pipelines, offloading and swarms of like machines, with and without a jittery latency (SWARM, 4.2)."""
