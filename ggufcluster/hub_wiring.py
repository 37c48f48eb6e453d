"""Join the downloads to the real hub; apart from the rest, which takes longer to load."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ggufcluster.adapters.hub import Hub


def open_hub() -> Hub:
    """Return the model hub that the environment names."""
    from ggufcluster.adapters.hub import HuggingFaceHub  # noqa: PLC0415 - only downloads need it

    return HuggingFaceHub()
