"""The record of an incident: the only home of DuckDB."""
