"""A small real training run with a planted fault.

Trainer, texts, faults, and the launcher that hides the plant.
"""
