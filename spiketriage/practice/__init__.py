"""Practice: the rehearsal ground and the demo, where the desk is tried on planted faults; the desk never imports it."""
