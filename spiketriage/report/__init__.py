"""The incident as Markdown, HTML and JSON, written from its dossier alone."""
