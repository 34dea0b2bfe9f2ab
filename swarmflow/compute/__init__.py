"""Computes: the stages of a model, their optimizer, codecs and checkpoints (torch)."""
