"""Which stabilizers a job has, and how each was seen."""
