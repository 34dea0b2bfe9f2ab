"""Decentralized min-cost flow: how many microbatches of each data node go along each link at a time (GWTF, V)."""
