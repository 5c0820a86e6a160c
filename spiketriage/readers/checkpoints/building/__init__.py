"""From what a layout found to one checkpoint."""
