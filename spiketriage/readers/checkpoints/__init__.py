"""Readers of generations: manifests, file digests and the finiteness of every tensor."""
