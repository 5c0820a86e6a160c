"""Causes in precision, ranges and kernels."""
