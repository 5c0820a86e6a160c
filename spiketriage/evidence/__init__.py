"""What freeze keeps and what every later step reads."""
