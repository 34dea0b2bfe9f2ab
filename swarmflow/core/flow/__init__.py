"""Decentralized min-cost flow: who sends how many microbatches of which data node to whom (GWTF, V)."""
