"""Run one big GGUF model over a handful of machines."""

__version__ = "0.1.0"
