"""The command line: each command parses, calls one step and shows the result; it never decides anything."""
