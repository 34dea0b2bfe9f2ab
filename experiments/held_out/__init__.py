"""Scenarios that a seed draws from families of swarms, under every router and baseline."""
