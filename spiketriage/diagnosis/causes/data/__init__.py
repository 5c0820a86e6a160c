"""Causes in the data that a step consumed."""
