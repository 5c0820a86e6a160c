"""Practice: the rehearsal and the demo, where the desk is tried on planted faults.

The desk never imports it.
"""
