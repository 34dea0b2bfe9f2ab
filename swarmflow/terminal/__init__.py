"""A run as text: what a terminal shows of it, and the lines that stand for it elsewhere."""
