"""Pretends: the same cores in virtual time, on a simulated network."""
