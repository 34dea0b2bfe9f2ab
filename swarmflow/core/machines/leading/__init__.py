"""What a leader decides, by subject. The machine that it is driven through is core/machines/leader.py."""
