"""A host that answers from a list."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ggufcluster.adapters.remote import CommandResult
from ggufcluster.errors import HostError, RemoteCommandError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path, PurePosixPath

    from ggufcluster.core.command import Command

Respond = Callable[["Command"], CommandResult]
Answer = CommandResult | HostError | Respond


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that was put: its contents and its permission bits."""

    data: bytes
    mode: int


@dataclass(slots=True)
class FakeRemote:
    """A `Remote` that answers from a list and keeps what is put in memory.

    Attributes:
        name: Name for people.
        commands: Every command that ran, in order.
        files: What was put, by absolute path; a link is kept as its text.
        closed: Whether `close` was called.
    """

    name: str = "fake"
    commands: list[Command] = field(default_factory=list)
    files: dict[str, StoredFile | str] = field(default_factory=dict)
    closed: bool = False
    _answers: list[tuple[re.Pattern[str], Answer]] = field(default_factory=list)

    def on(self, pattern: str | re.Pattern[str], answer: Answer | str) -> FakeRemote:
        """Answer commands whose shown text contains `pattern`; later answers go first.

        Args:
            pattern: A plain part of the text, or a compiled expression.
            answer: How it ends, its stdout, an error to raise, or a function of the command.
        """
        if isinstance(pattern, str):
            pattern = re.compile(re.escape(pattern))
        if isinstance(answer, str):
            answer = CommandResult(0, answer, "")
        self._answers.insert(0, (pattern, answer))
        return self

    def shown(self) -> list[str]:
        """Return every command that ran as text, secrets masked."""
        return [command.shown() for command in self.commands]

    def run(self, command: Command, *, timeout: float, check: bool = True) -> CommandResult:
        """Answer a command; one without an answer is an AssertionError."""
        del timeout
        self.commands.append(command)
        result = self._answer(command)
        if check and result.exit_code != 0:
            raise RemoteCommandError(
                self.name,
                command=command.shown(),
                exit_code=result.exit_code,
                stderr=command.mask(result.stderr),
            )
        return result

    def stream(self, command: Command, *, quiet_timeout: float | None) -> Iterator[str]:
        """Yield the lines of the answer's stdout."""
        del quiet_timeout
        self.commands.append(command)
        result = self._answer(command)
        yield from result.stdout.splitlines()
        if result.exit_code != 0:
            raise RemoteCommandError(
                self.name,
                command=command.shown(),
                exit_code=result.exit_code,
                stderr=command.mask(result.stdout),
            )

    def put(
        self, source: Path, target: PurePosixPath, *, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Keep one file."""
        self._keep(source, str(target), on_bytes)

    def put_tree(
        self, source: Path, target: PurePosixPath, *, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Keep a folder's files and links, unless something is kept under `target`."""
        if any(name.startswith(f"{target}/") for name in self.files):
            return
        for path in sorted(source.rglob("*")):
            name = f"{target}/{path.relative_to(source)}"
            if path.is_symlink():
                self.files[name] = str(path.readlink())
            elif path.is_file():
                self._keep(path, name, on_bytes)

    def close(self) -> None:
        """Note that it was called."""
        self.closed = True

    def _keep(self, source: Path, name: str, on_bytes: Callable[[int], None] | None) -> None:
        data = source.read_bytes()
        if on_bytes is not None:
            on_bytes(len(data))
        self.files[name] = StoredFile(data, source.stat().st_mode & 0o7777)

    def _answer(self, command: Command) -> CommandResult:
        for pattern, answer in self._answers:
            if pattern.search(command.shown()):
                if isinstance(answer, HostError):
                    raise answer
                return answer if isinstance(answer, CommandResult) else answer(command)
        raise AssertionError(f"{self.name}: no answer for {command.shown()}")
