"""What ggufcluster needs of a host, near or far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path, PurePosixPath

    from ggufcluster.core.command import Command


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended; output is decoded as UTF-8 with replacement."""

    exit_code: int
    stdout: str
    stderr: str


class Remote(Protocol):
    """One host on which commands run and files are written.

    Every method raises a `HostError` (unreachable, refused, timed out) or, where it says so,
    `RemoteCommandError`. Every wait is bounded. One thread at a time may use it. A command that is
    given up (deadline, Ctrl-C) is ended with its whole process group; what must outlive its
    command needs a session of its own (`setsid`).
    """

    @property
    def name(self) -> str:
        """Name for people: ``user@host`` or ``this machine``."""

    def run(self, command: Command, *, timeout: float, check: bool = True) -> CommandResult:
        """Run a command to its end.

        Raises:
            RemoteCommandError: It exited non-zero and `check` is set.
            CommandTimeoutError: It did not end within `timeout` seconds; it was ended.
        """

    def stream(self, command: Command, *, quiet_timeout: float | None) -> Iterator[str]:
        """Yield the lines of stdout and stderr together as they come.

        Closing the iterator early ends the command.

        Raises:
            RemoteCommandError: It exited non-zero.
            CommandTimeoutError: No line came for `quiet_timeout` seconds (None: wait for ever).
        """

    def put(
        self, source: Path, target: PurePosixPath, *, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Copy one file, with its mode, whole or not at all (temporary name, then rename).

        Folders above `target` are made. `on_bytes` is told the bytes sent since its last call.

        Raises:
            DiskFullError: The host ran out of space; the temporary file is removed.
        """

    def put_tree(
        self, source: Path, target: PurePosixPath, *, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Copy a folder with modes and relative links, published under `target` by one rename.

        A `target` that exists is left as it is. A broken copy leaves nothing behind.

        Raises:
            DiskFullError: The host ran out of space; the partial copy is removed.
        """

    def close(self) -> None:
        """Close the connection; safe to call twice."""


class FarRemote(Remote, Protocol):
    """A host on another machine, with both ends of the way to it."""

    @property
    def own_address(self) -> str:
        """IP address of this machine on the way to the host."""

    @property
    def peer_address(self) -> str:
        """IP address by which this machine reaches the host."""
