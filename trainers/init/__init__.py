"""The first RUN.toml of a run: `swarmflow init` finds the text, chooses the settings, and writes them with comments."""
