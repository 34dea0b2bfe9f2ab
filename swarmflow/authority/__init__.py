"""Who may take part in a run, by the word of its owner: keys, certificates, the run's policy, and its enforcement."""
