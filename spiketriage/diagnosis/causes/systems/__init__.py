"""Causes in devices, memory and communication."""
