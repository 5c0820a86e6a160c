"""The contract on disk between the training side and the desk, versioned.

It never imports either side.
"""
