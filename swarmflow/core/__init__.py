"""Decides: state machines that take (event, now) and return actions. Standard library only."""
