"""Checkpoint layouts, a file each."""
