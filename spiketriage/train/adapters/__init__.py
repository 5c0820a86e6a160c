"""Adapters: somebody's own loop or framework, recorded, guarded, saved and replayed alike.

Nothing outside this folder imports an adapter; each imports its framework only when it is used.
"""
