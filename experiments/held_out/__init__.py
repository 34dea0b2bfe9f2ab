"""Scenarios that nobody has tuned for: drawn by a seed from families of swarms, under every router and baseline."""
