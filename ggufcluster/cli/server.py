"""Find the server that a command talks with: the cluster's, or one that is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from ggufcluster.core.secret import Secret


def find_server(url: str | None, api_key_file: Path | None) -> tuple[str, Secret | None]:
    """Return root and key of the server at an address, or of the running cluster's.

    Raises:
        ClusterUnhealthyError: No cluster is up and no address was given.
        ConfigError: The address is none, or the key cannot be read.
    """
    from ggufcluster.config import load_settings
    from ggufcluster.errors import ClusterUnhealthyError
    from ggufcluster.wiring import world
    from ggufcluster.workflows.status import read_key

    key = read_key(str(api_key_file), source="--api-key-file") if api_key_file else None
    if url is not None:
        return _root(url), key
    with world(load_settings(os.environ, folder=Path.cwd(), flags={})) as outside:
        record = outside.store.load()
    if record is None:
        raise ClusterUnhealthyError(("no cluster is up",))
    return record.root, key or read_key(record.api_key_file)


def _root(url: str) -> str:
    """Return the root of an address, which people also give with the API's `/v1`."""
    from ggufcluster.errors import ConfigError

    try:
        parts = urlsplit(url)
        right = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right:
        raise ConfigError(f"{url!r} is no address such as http://127.0.0.1:8080", source="--url")
    return url.rstrip("/").removesuffix("/v1")
