"""Swarms of real processes on this machine, for tests, demonstrations and trials."""
