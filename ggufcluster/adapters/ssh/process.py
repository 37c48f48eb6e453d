"""A program that runs behind an SSH session."""

from __future__ import annotations

import contextlib
import re
import select
from typing import TYPE_CHECKING

import paramiko

from ggufcluster.adapters.process import WRITE_SECONDS, Chunk, Stream
from ggufcluster.errors import HostUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 64 * 1024
# OpenSSH takes packets of 32 KiB and paramiko keeps 64 bytes of each for itself.
_PACKET_BYTES = 32 * 1024 - 64
_MAX_PREAMBLE_BYTES = 64 * 1024
_BROKEN = (paramiko.SSHException, EOFError, OSError)


class SshProcess:
    """A `Process` of a far machine.

    Args:
        channel: The session, its command sent.
        mark: Text that precedes the process id on the first line of output.
        host: Name for errors.
        end_group: Ends a process group on that host.
    """

    def __init__(
        self,
        channel: paramiko.Channel,
        mark: str,
        *,
        host: str,
        end_group: Callable[[int], None],
    ) -> None:
        self._channel = channel
        self._host = host
        self._end_group = end_group
        self._mark = re.compile(re.escape(mark).encode() + rb" (\d+)\n")
        self._preamble = bytearray()
        self._leader: int | None = None
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        channel.settimeout(WRITE_SECONDS)

    def read(self, wait: float) -> Chunk | None:
        """Return the next piece of output, or None."""
        chunk = self._ready()
        if chunk is not None or wait <= 0:
            return chunk
        if self._over:
            self._channel.status_event.wait(wait)
        else:
            self._poll.poll(wait * 1000)
        return self._ready()

    @property
    def at_end(self) -> bool:
        """Whether all output has been read."""
        waiting = self._channel.recv_ready() or self._channel.recv_stderr_ready()
        return not waiting and self._over

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""
        if not self._channel.exit_status_ready():
            return None
        code = self._channel.exit_status
        if code < 0:
            raise HostUnreachableError(
                self._host, reason="the connection was lost while a command ran"
            )
        if self._leader is None and self.at_end:
            raise HostUnreachableError(self._host, reason=self._no_shell())
        return code

    def write(self, data: bytes) -> None:
        """Feed its stdin."""
        offset = 0
        try:
            while offset < len(data):
                offset += self._channel.send(data[offset : offset + _PACKET_BYTES])
        except (EOFError, paramiko.SSHException) as error:
            raise BrokenPipeError(str(error)) from None

    def close_input(self) -> None:
        """Let its stdin end."""
        with contextlib.suppress(*_BROKEN):
            self._channel.shutdown_write()

    def end(self) -> None:
        """End its whole process group, over a session of its own."""
        if self._leader is not None and not self._channel.exit_status_ready():
            self._end_group(self._leader)

    def close(self) -> None:
        """Close the session."""
        self._channel.close()

    @property
    def _over(self) -> bool:
        return bool(self._channel.eof_received or self._channel.closed)

    def _ready(self) -> Chunk | None:
        if self._channel.recv_ready():
            data = self._after_mark(self._channel.recv(_READ_BYTES))
            return Chunk(Stream.STDOUT, data) if data else None
        if self._channel.recv_stderr_ready():
            return Chunk(Stream.STDERR, self._channel.recv_stderr(_READ_BYTES))
        return None

    def _after_mark(self, data: bytes) -> bytes:
        # Whatever a shell's start-up files print comes before the mark.
        if self._leader is not None:
            return data
        self._preamble += data
        match = self._mark.search(self._preamble)
        if match is None:
            del self._preamble[:-_MAX_PREAMBLE_BYTES]
            return b""
        self._leader = int(match[1])
        return bytes(self._preamble[match.end() :])

    def _no_shell(self) -> str:
        said = self._preamble.decode(errors="replace").strip().splitlines()
        return f"its login shell runs no command ({said[-1] if said else 'it says nothing'})"
