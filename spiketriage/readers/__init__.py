"""Readers: bytes on disk become records, read-only, without torch and without unpickling."""
