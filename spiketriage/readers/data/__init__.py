"""Readers of data stores: the index and the documents that it points at."""
