"""Examines whether this machine can serve a run, and says what to do about what it finds: `swarmflow doctor`."""
