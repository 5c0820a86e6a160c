"""Readers of system evidence: what kernels, drivers, launchers and schedulers wrote."""
