"""A small real training run with a planted fault: trainer, texts, faults and launcher.

The launcher never lets the plant show.
"""
