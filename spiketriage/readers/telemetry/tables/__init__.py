"""Tables of metrics: CSV, JSON, JSON lines."""
