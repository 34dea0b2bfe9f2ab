"""Measurements: each is one command, and says what it was run on."""
