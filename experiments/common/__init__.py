"""What the experiments share: rows of figures, their files, tables and plots, and the command line."""
