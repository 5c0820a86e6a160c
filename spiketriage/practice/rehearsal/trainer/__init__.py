"""The reference trainer, deployed as a package of its own into a run folder.

It imports only the training side.
"""
