"""The training side: recorder, generations, harness and trial worker, with torch and numpy alone; it never imports the desk."""
