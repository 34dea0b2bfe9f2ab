"""Throughput and the cost of decisions by the number of peers (SWARM, appendix H)."""
