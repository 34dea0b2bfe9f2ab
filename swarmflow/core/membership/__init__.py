"""Who takes part, at which stage, and who is put out: as the leader knows and decides it."""
