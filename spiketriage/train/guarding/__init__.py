"""The guard that skips, rolls back or stops, equally on every rank."""
