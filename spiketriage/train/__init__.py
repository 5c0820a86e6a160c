"""The training side: recorder, generations, harness, trial worker.

Torch and numpy alone, never the desk.
"""
