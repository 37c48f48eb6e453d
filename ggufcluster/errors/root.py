"""The root of the exception tree, on its own so that each branch can import it."""

from __future__ import annotations


class GgufClusterError(Exception):
    """Root of all errors that ggufcluster raises on purpose."""
