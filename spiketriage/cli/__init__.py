"""The command line: each command parses, calls one step and shows the result.

It never decides anything.
"""
