"""Assigns: what is worked out beforehand from a whole picture of machines and ways."""
