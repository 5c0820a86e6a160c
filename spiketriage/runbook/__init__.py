"""The steps of the runbook, one file each; a step reads the incident, adds rows and ends."""
