"""The training side: recorder, generations, harness, trial worker; torch and numpy alone, never the desk."""
