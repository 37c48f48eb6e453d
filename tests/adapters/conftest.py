"""Hosts to test the adapters against."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.adapters.ssh import SshRemote
from tests.adapters.sshd import SSHD, SshServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ggufcluster.adapters.remote import Remote


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    """Yield a running SSH server that is known and takes the client key; not to be disturbed."""
    with _running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def own_sshd(tmp_path: Path) -> Iterator[SshServer]:
    """Yield a running SSH server of the test's own."""
    with _running(tmp_path / "sshd") as server:
        yield server


@pytest.fixture
def ssh(sshd: SshServer) -> Iterator[SshRemote]:
    """Yield a connection to this machine over SSH."""
    remote = SshRemote(sshd.target())
    yield remote
    remote.close()


@pytest.fixture(params=["local", "ssh"])
def remote(request: pytest.FixtureRequest) -> Remote:
    """Return this machine, directly and over SSH."""
    if request.param == "local":
        return LocalRemote()
    found: Remote = request.getfixturevalue("ssh")
    return found


@contextmanager
def _running(folder: Path) -> Iterator[SshServer]:
    if SSHD is None:
        pytest.skip("sshd is not installed (Debian: openssh-server)")
    server = SshServer(folder)
    server.prepare()
    server.trust()
    try:
        server.start()
        yield server
    finally:
        server.stop()
