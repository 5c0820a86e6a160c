"""The training side: recorder, guard, generations, harness, trial worker.

It imports torch and numpy alone, never the desk.
"""
