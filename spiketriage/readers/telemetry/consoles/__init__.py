"""Logs that trainers print for people."""
