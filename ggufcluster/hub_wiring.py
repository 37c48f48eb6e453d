"""Join the downloads to the real hub; apart from the rest, which takes longer to load."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ggufcluster.errors import ConfigError

if TYPE_CHECKING:
    from ggufcluster.adapters.hub import Hub


_ADDRESS = re.compile(
    r"https?://(?:[^\s/@\[\]]+@)?(?:\[[0-9a-f:.]+\]|[^\s/@\[\]:]+)(?::\d+)?(?:/\S*)?$",
    re.IGNORECASE,
)


def open_hub() -> Hub:
    """Return the model hub that the environment names.

    Raises:
        ConfigError: What it names can be no hub.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "")
    # Before the import: the hub's package splits the address while it is loaded.
    if endpoint and not _ADDRESS.match(endpoint):
        reason = f"{endpoint!r} is no address such as https://huggingface.co"
        raise ConfigError(reason, source="HF_ENDPOINT")
    from ggufcluster.adapters.hub import HuggingFaceHub  # noqa: PLC0415 - only downloads need it

    return HuggingFaceHub()
