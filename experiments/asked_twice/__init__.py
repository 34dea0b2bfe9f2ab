"""Whether any hop is asked for twice where nobody dies, over the scenarios of the other experiments."""
