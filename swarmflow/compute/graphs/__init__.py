"""Trains any module with a loss: exported as a graph of operators, and cut into stages between two of them."""
