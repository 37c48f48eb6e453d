"""Ctrl-C for a program that goes on: it stops what can be stopped, and nothing else."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Interrupts:
    """While it is open, Ctrl-C raises KeyboardInterrupt inside `stoppable` blocks only.

    One that comes outside of them waits for the next. Each block is stopped at most once, so that
    what is done after a stop is not itself cut short.
    """

    def __init__(self) -> None:
        self._armed = False
        self._pending = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Take over the signal, and give it back at the end."""
        before = signal.signal(signal.SIGINT, self._came)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let Ctrl-C end the block with a KeyboardInterrupt."""
        self._armed = True
        try:
            if self._pending:
                self._raise()
            yield
        finally:
            self._armed = False

    def forget(self) -> None:
        """Drop a Ctrl-C that waits."""
        self._pending = False

    def _came(self, _number: int, _frame: FrameType | None) -> None:
        if self._armed:
            self._raise()
        self._pending = True

    def _raise(self) -> None:
        self._armed = self._pending = False
        raise KeyboardInterrupt
