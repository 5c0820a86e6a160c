"""A small real training run with a planted fault: trainer, texts, faults, and the launcher that hides the plant."""
