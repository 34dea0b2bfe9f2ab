"""What `swarmflow simulate` shows: a progress bar, a summary, and files."""
