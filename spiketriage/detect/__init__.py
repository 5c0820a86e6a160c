"""Spike rules that the guard and the desk share."""
