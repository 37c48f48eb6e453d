"""Hosts for tests that need more than one machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hosts.netns import Hosts, obstacle, running_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.hosts)


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Yield three hosts, 10.20.20.1 to .3, each with sshd, home and XDG folders of its own."""
    reason = obstacle()
    if reason is not None:
        pytest.skip(reason)
    with running_hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found
