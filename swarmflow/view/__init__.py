"""What those who watch a run see of it: its present state, and its timeline."""
