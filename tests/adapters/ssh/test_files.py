"""The user's SSH configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.ssh import find_target
from ggufcluster.core.worker_address import SshWorker
from ggufcluster.errors import (
    ConfigError,
    HostKeyError,
)
from tests.adapters.sshd import SshServer, say_hello

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_configuration_decides_how_a_host_is_reached(own_sshd: SshServer, home: Path) -> None:
    """An alias in ~/.ssh/config, in an included file at that, is enough to log in."""
    (home / ".ssh" / "config").write_text("Include sparks/*.conf\nHost *\n  Port 1\n")
    (home / ".ssh" / "sparks").mkdir()
    (home / ".ssh" / "sparks" / "one.conf").write_text(
        f"Host spark\n  HostName 127.0.0.1\n  Port {own_sshd.port}\n"
        f"  IdentityFile {own_sshd.client_key}\n"
        f"  UserKnownHostsFile {own_sshd.known_hosts}\n"
    )

    target = find_target(SshWorker("spark"))

    assert str(target).endswith("@spark")
    assert say_hello(target) == "hello\n"


def test_configuration_cannot_switch_the_check_off(own_sshd: SshServer, home: Path) -> None:
    """StrictHostKeyChecking no does not make an unknown key known."""
    (home / ".ssh" / "config").write_text(
        f"Host *\n  StrictHostKeyChecking no\n  IdentityFile {own_sshd.client_key}\n"
        "  UserKnownHostsFile /dev/null\n"
    )

    with pytest.raises(HostKeyError):
        say_hello(find_target(SshWorker("127.0.0.1", port=own_sshd.port)))


def test_broken_configuration_is_told(home: Path) -> None:
    """A configuration that cannot be parsed is an error of configuration."""
    (home / ".ssh" / "config").write_text("Host 'never closed\n")

    with pytest.raises(ConfigError):
        find_target(SshWorker("spark"))
