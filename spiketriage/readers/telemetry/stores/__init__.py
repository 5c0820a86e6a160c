"""Stores that experiment trackers write."""
