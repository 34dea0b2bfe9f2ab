"""Which versions are safe, where copies of them lie, and how a run comes back from them."""
