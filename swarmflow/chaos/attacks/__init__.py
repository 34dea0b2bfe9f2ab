"""Attackers: real processes that lie, beside a local swarm that has to learn what it would learn without them."""
