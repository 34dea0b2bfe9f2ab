"""Fleets of slow and of fast devices, alone and together, with and without shared layers (SWARM, 4.3)."""
