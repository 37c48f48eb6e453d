"""A running program, near or far, and how it is followed to its end."""

from __future__ import annotations

import codecs
import contextlib
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from ggufcluster.adapters.remote import CommandResult
from ggufcluster.errors import CommandTimeoutError, RemoteCommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.command import Command

POLL_SECONDS = 0.2
# A program that has exited may have left its output to a child that runs on; such output is
# waited for no longer than this.
ORPHAN_SECONDS = 2.0
# How long one write may wait for the other end to take data.
WRITE_SECONDS = 60.0
_TAIL_LINES = 50


class Stream(Enum):
    """Which output a piece came from."""

    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output, never empty."""

    stream: Stream
    data: bytes


class Process(Protocol):
    """A program that was started and leads a process group of its own."""

    def read(self, wait: float) -> Chunk | None:
        """Return the next piece of output, or None if none came within `wait` seconds."""

    @property
    def at_end(self) -> bool:
        """Whether all output has been read."""

    def exit_code(self) -> int | None:
        """Return the exit code, 128 + n after signal n, None while it runs.

        Raises:
            HostUnreachableError: The connection was lost, so nobody knows.
        """

    def write(self, data: bytes) -> None:
        """Feed its stdin.

        Raises:
            TimeoutError: It took nothing for `WRITE_SECONDS`.
            OSError: It no longer reads.
        """

    def close_input(self) -> None:
        """Let its stdin end."""

    def end(self) -> None:
        """End its whole process group, gently and then by force."""

    def close(self) -> None:
        """Let go of it."""


class Limit:
    """A deadline on the whole, or on the time without output."""

    def __init__(self, seconds: float | None, *, on_quiet: bool = False) -> None:
        self._seconds = seconds
        self._on_quiet = on_quiet
        self._start = time.monotonic()

    def heard(self) -> None:
        """Note that output came."""
        if self._on_quiet:
            self._start = time.monotonic()

    def left(self) -> float:
        """Return the seconds left, below zero when passed."""
        if self._seconds is None:
            return POLL_SECONDS
        return self._start + self._seconds - time.monotonic()


def chunks(process: Process, limit: Limit) -> Iterator[Chunk]:
    """Yield the output of a process until it is over.

    Raises:
        TimeoutError: The limit passed; the process still runs.
        HostUnreachableError: The connection was lost.
    """
    last_sign = time.monotonic()
    while limit.left() > 0:
        chunk = process.read(min(POLL_SECONDS, limit.left()))
        if chunk is not None:
            last_sign = time.monotonic()
            limit.heard()
            yield chunk
        elif process.exit_code() is None:
            last_sign = time.monotonic()
        elif process.at_end or time.monotonic() - last_sign > ORPHAN_SECONDS:
            return
    raise TimeoutError


def run_to_end(process: Process, command: Command, *, host: str, timeout: float) -> CommandResult:
    """Feed a process its stdin, gather its output and return how it ended.

    Whatever interrupts the wait (the deadline, Ctrl-C) ends the process first.

    Raises:
        CommandTimeoutError: It did not end within `timeout` seconds.
        HostUnreachableError: The connection was lost.
    """
    gathered = {stream: bytearray() for stream in Stream}
    with closing(process), _fed(process, command.stdin), _ended_on_error(process):
        try:
            for chunk in chunks(process, Limit(timeout)):
                gathered[chunk.stream] += chunk.data
        except TimeoutError:
            raise CommandTimeoutError(host, command=command.shown(), seconds=timeout) from None
        return CommandResult(
            exit_code=_known_exit_code(process),
            stdout=gathered[Stream.STDOUT].decode(errors="replace"),
            stderr=gathered[Stream.STDERR].decode(errors="replace"),
        )


def stream_lines(
    process: Process, command: Command, *, host: str, quiet_timeout: float | None
) -> Iterator[str]:
    """Yield lines as they come; a caller that stops early ends the process.

    Raises:
        RemoteCommandError: It exited non-zero; `stderr` holds its last lines.
        CommandTimeoutError: It was quiet for too long.
        HostUnreachableError: The connection was lost.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with closing(process), _fed(process, command.stdin), _ended_on_error(process):
        try:
            for line in _lines(chunks(process, Limit(quiet_timeout, on_quiet=True))):
                tail.append(line)
                yield line
        except TimeoutError:
            seconds = quiet_timeout or 0.0
            raise CommandTimeoutError(host, command=command.shown(), seconds=seconds) from None
        check_exit(command, _known_exit_code(process), host=host, stderr="\n".join(tail))


def check_exit(command: Command, exit_code: int, *, host: str, stderr: str) -> None:
    """Raise RemoteCommandError, secrets masked, unless the exit code is zero."""
    if exit_code != 0:
        raise RemoteCommandError(
            host, command=command.shown(), exit_code=exit_code, stderr=command.mask(stderr)
        )


def _known_exit_code(process: Process) -> int:
    code = process.exit_code()
    assert code is not None
    return code


def _lines(pieces: Iterator[Chunk]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + decoder.decode(piece.data)).split("\n")
        yield from (line.removesuffix("\r") for line in whole)
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest


@contextlib.contextmanager
def _ended_on_error(process: Process) -> Iterator[None]:
    try:
        yield
    except BaseException:
        process.end()
        raise


@contextlib.contextmanager
def _fed(process: Process, data: bytes | None) -> Iterator[None]:
    # A thread of its own: a program may fill its output before it has read all its input.
    if data is None:
        yield
        return
    feeder = threading.Thread(target=_feed, args=(process, data), daemon=True)
    feeder.start()
    try:
        yield
    finally:
        feeder.join(ORPHAN_SECONDS)


def _feed(process: Process, data: bytes) -> None:
    with contextlib.suppress(OSError):
        process.write(data)
    with contextlib.suppress(OSError):
        process.close_input()
