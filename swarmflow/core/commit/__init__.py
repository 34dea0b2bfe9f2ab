"""How a step commits: its members, its ledger, its ballots, its all-reduce."""
