"""This machine as a `Remote`; the only importer of subprocess."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from ggufcluster.adapters.command_host import CommandHost
from ggufcluster.adapters.process import POLL_SECONDS, WRITE_SECONDS, Chunk, Stream

if TYPE_CHECKING:
    from ggufcluster.core.command import Command

_READ_BYTES = 64 * 1024
_END_SECONDS = 2.0  # for a signal to work; where nobody reaps orphans, they never go


class LocalRemote(CommandHost):
    """Run commands and write files on this machine, with the semantics of a far one."""

    @property
    def name(self) -> str:
        """Name for people."""
        return "this machine"

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _start(self, command: Command, *, feed: bool, merge: bool = False) -> LocalProcess:
        # Through sh as over SSH, so that a missing program or folder looks the same on both.
        return LocalProcess(
            subprocess.Popen(
                ["sh", "-c", command.shell()],
                stdin=subprocess.PIPE if feed else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merge else subprocess.PIPE,
                start_new_session=True,
                # Else C's own variables are passed on: an engine in this process may have set some.
                env=dict(os.environ),
            )
        )


class LocalProcess:
    """A `Process` of this machine."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self._outputs = selectors.DefaultSelector()
        for pipe, stream in ((popen.stdout, Stream.STDOUT), (popen.stderr, Stream.STDERR)):
            if pipe is not None:
                self._outputs.register(pipe, selectors.EVENT_READ, stream)
        if popen.stdin is not None:
            os.set_blocking(popen.stdin.fileno(), False)

    def read(self, wait: float) -> Chunk | None:
        """Return the next piece of output, or None."""
        if self.at_end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(wait)
            return None
        for key, _ in self._outputs.select(wait):
            data = os.read(key.fd, _READ_BYTES)
            if data:
                return Chunk(key.data, data)
            self._outputs.unregister(key.fileobj)
        return None

    @property
    def at_end(self) -> bool:
        """Whether all output has been read."""
        return not self._outputs.get_map()

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""
        code = self._popen.poll()
        return 128 - code if code is not None and code < 0 else code

    def write(self, data: bytes) -> None:
        """Feed its stdin."""
        assert self._popen.stdin is not None
        pipe = self._popen.stdin.fileno()
        rest = memoryview(data)
        while rest:
            if not select.select([], [pipe], [], WRITE_SECONDS)[1]:
                raise TimeoutError
            rest = rest[os.write(pipe, rest) :]

    def close_input(self) -> None:
        """Let its stdin end."""
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def end(self) -> None:
        """End its whole process group, gently first."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + _END_SECONDS
            alive = self._signal(number)
            while alive and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS / 4)
                alive = self._signal(0)

    def close(self) -> None:
        """Close the pipes."""
        self._outputs.close()
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()

    def _signal(self, number: int) -> bool:
        self._popen.poll()  # a leader not waited for would keep its group alive
        try:
            os.killpg(self._popen.pid, number)
        except ProcessLookupError:
            return False
        return True
