"""swarmflow: train one language model on machines that come and go."""

__version__ = "0.1.0"
