"""spiketriage names the cause of a loss spike from evidence, one changed factor at a time.

This package root holds the version only; it never imports a layer, so that `--help` stays light.
"""

__version__ = "0.1.0"
