"""Readers of telemetry segments, and the order in which attempts make up production."""
