"""The part of a `Remote` that does not care whether the host is near or far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ggufcluster.adapters.copying import Copy, carry_out, copy_file, copy_tree
from ggufcluster.adapters.process import check_exit, run_to_end, stream_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path, PurePosixPath

    from ggufcluster.adapters.process import Process
    from ggufcluster.adapters.remote import CommandResult
    from ggufcluster.core.command import Command


class CommandHost(ABC):
    """A `Remote` made of one ability: starting a program. See `Remote` for the methods."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for people."""

    @abstractmethod
    def _start(self, command: Command, *, feed: bool, merge: bool = False) -> Process:
        """Start a program in a process group of its own.

        Args:
            command: What to run; its `stdin` is left to the caller.
            feed: Connect stdin to `Process.write`, else to /dev/null.
            merge: Send stderr into stdout.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of the host; safe to call twice."""

    def run(self, command: Command, *, timeout: float, check: bool = True) -> CommandResult:
        """Run a command to its end; its output is held in memory."""
        process = self._start(command, feed=command.stdin is not None)
        result = run_to_end(process, command, host=self.name, timeout=timeout)
        if check:
            check_exit(command, result.exit_code, host=self.name, stderr=result.stderr)
        return result

    def stream(self, command: Command, *, quiet_timeout: float | None) -> Iterator[str]:
        """Yield the lines of stdout and stderr; closing the iterator ends the command."""
        process = self._start(command, feed=command.stdin is not None, merge=True)
        yield from stream_lines(process, command, host=self.name, quiet_timeout=quiet_timeout)

    def put(
        self, source: Path, target: PurePosixPath, *, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Copy one file, whole or not at all."""
        self._copy(copy_file(source, target, on_bytes))

    def put_tree(
        self, source: Path, target: PurePosixPath, *, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Copy a folder, whole or not at all, unless the target exists."""
        self._copy(copy_tree(source, target, on_bytes))

    def _copy(self, copy: Copy) -> None:
        carry_out(copy, self._start(copy.receiver(), feed=True), host=self.name)
