"""Chaos: a local swarm of real processes under a seeded schedule of faults, and a comparison of what it has learnt."""
