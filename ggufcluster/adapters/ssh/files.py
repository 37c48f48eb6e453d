"""The files of OpenSSH on this machine: its configuration and its known host keys."""

from __future__ import annotations

import fcntl
import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.core.known_hosts import parse_known_hosts
from ggufcluster.core.ssh_config import expand_includes
from ggufcluster.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ggufcluster.core.known_hosts import KnownKey

_SYSTEM_FOLDER = Path("/etc/ssh")


def read_config(home: Path) -> str:
    """Return the user's SSH configuration followed by the system's, Include lines replaced.

    Raises:
        ConfigError: A file cannot be read, or files include each other without end.
    """
    user = _read_with_includes(home / ".ssh" / "config", home=home)
    system = _read_with_includes(_SYSTEM_FOLDER / "ssh_config", home=home)
    return f"{user}\nHost *\n{system}"


def read_known_hosts(paths: Iterable[str]) -> tuple[KnownKey, ...]:
    """Return the known keys of all files that exist, in order."""
    return tuple(key for path in paths for key in parse_known_hosts(_read(Path(path))))


def add_known_host(path: Path, line: str) -> None:
    """Append a line to a known_hosts file, made with mode 0600 if missing; all else is kept."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        if text and not text.endswith(b"\n"):
            line = "\n" + line
        file.write(f"{line}\n".encode())


def _read_with_includes(path: Path, *, home: Path) -> str:
    def included(pattern: str) -> list[str]:
        if pattern.startswith("~/"):
            pattern = f"{home}/{pattern[2:]}"
        names = glob.glob(str(path.parent / pattern))  # noqa: PTH207 - the pattern may be absolute
        return [_read(Path(name)) for name in sorted(names)]

    return expand_includes(_read(path), included)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ConfigError(error.strerror or "unreadable", source=str(path)) from None
