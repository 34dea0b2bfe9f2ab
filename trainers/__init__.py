"""The trainer role: a process at a data node that forms microbatches and routes them."""
