"""Downloads from a hub that misbehaves on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ggufcluster.testing import HubServer
from tests.workflows.downloads import REPO, Downloader, hashes, shards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server() -> Iterator[HubServer]:
    """A hub."""
    with HubServer() as running:
        yield running


@pytest.fixture
def downloader(server: HubServer, tmp_path: Path) -> Downloader:
    """A downloader of that hub."""
    return Downloader(server, tmp_path / "models", tmp_path / "cache")


def test_all_shards_come_verified(server: HubServer, downloader: Downloader) -> None:
    """Every shard of the set arrives under its published name, fetched by ranges and once."""
    files = shards(3, 300_000)
    commit = server.publish(REPO, files)

    done = downloader.run()

    assert downloader.contents() == hashes(files)
    assert (done.commit, done.fetched) == (commit, sum(map(len, files.values())))
    assert done.first == downloader.folder / "m-Q4_K_M-00001-of-00003.gguf"
    assert server.served == done.fetched
    assert all("range" in asked.headers for asked in server.data_requests())
