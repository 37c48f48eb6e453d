"""A terminal with our command in it, to type into and to read from."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import ggufcluster
from tests.waiting import state_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(ggufcluster.__file__).parents[1]
_PATIENCE = 60.0
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|.)|\r")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the variables of a command: a home of its own, and nothing of the test's."""
    known = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT)}
    return {**known, "TERM": "xterm", "LANG": "C.UTF-8", **more}


def command(*words: str) -> list[str]:
    """Return the words that start our command."""
    return [sys.executable, "-m", "ggufcluster", *words]


class Terminal:
    """What a command shows and a person types.

    Attributes:
        process: The command.
        seen: All that was shown, escape sequences included.
    """

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.seen = ""
        self._master = master
        self._mark = 0

    def type(self, text: str) -> None:
        """Type something; a line ends with a carriage return."""
        os.write(self._master, text.encode())

    def line(self, text: str) -> None:
        """Wait for the prompt and type a line into it."""
        self.expect("> ")
        self.type(f"{text}\r")

    def stop(self) -> None:
        """Type Ctrl-C once the command waits for something.

        Python only notes a signal, and looks at its notes before it waits: what comes in
        between those two is seen when the wait ends, which it may not do here.
        """
        wait_for(lambda: state_of(self.process.pid) == "S", what="a command that waits")
        self.type("\x03")

    def expect(self, words: str) -> str:
        """Wait until something is shown; return what came since the last time, without escapes."""
        deadline = time.monotonic() + _PATIENCE
        while words not in (shown := self._plain()):
            if time.monotonic() > deadline or not self._read():
                raise AssertionError(f"{words!r} was not shown but {shown!r}")
        end = shown.index(words) + len(words)
        self._mark += end
        return shown[:end]

    def leave(self) -> int:
        """Wait until the command has ended; return its exit code."""
        while self._read():
            pass
        return self.process.wait(_PATIENCE)

    def _plain(self) -> str:
        return _ESCAPES.sub("", self.seen)[self._mark :]

    def _read(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], _PATIENCE)
        with suppress(OSError):  # what Linux says once nobody has the other end
            if ready and (data := os.read(self._master, 65536)):
                self.seen += data.decode(errors="replace")
                return True
        return False


@contextmanager
def terminal(home: Path, *words: str, **more: str) -> Iterator[Terminal]:
    """Run our command in a terminal of 80 columns and end it with the block."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    # setsid gives it the terminal as its own: Ctrl-C is typed, not sent.
    process = subprocess.Popen(
        ["setsid", "--ctty", *command(*words)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(home, **more),
        cwd=home,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(master)
