"""How a leader is followed, lost and replaced."""
