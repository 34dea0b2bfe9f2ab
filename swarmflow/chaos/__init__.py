"""Chaos: a local swarm of real processes under a seeded schedule of faults, and what it has learnt in spite of them."""
