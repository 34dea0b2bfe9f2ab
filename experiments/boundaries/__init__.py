"""What learnt boundaries cost in loss: SWARM's compression-aware architectures."""
