"""Commands that are no step of the runbook."""
