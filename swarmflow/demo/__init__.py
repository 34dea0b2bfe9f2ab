"""The demonstration: a swarm on this machine that trains a small model and survives the death of a peer."""
