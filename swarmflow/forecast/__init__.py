"""The command `swarmflow simulate`: runs a scenario, shows a progress bar and a summary, and writes files."""
