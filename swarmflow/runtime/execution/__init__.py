"""A process at work: the driver of its machine, its threads, its stage, its state, its metrics."""
