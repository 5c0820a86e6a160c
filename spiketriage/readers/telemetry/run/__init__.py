"""A run's telemetry as one lineage, whoever wrote it."""
