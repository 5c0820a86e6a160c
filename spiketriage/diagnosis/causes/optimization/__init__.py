"""Causes in the optimizer, its state and its schedule."""
