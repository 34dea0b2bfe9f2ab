"""What a peer decides, by subject. The machine that it is driven through is core/machines/peer.py."""
