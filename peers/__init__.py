"""The peer role: a process that serves one stage of the model."""
