"""Readers: bytes on disk become records, read-only, without torch, with nothing unpickled."""
