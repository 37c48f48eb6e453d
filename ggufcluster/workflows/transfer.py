"""Turn a copy that reports by callback into a workflow that yields progress."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

from ggufcluster.workflows.events import Finished, Progress, Started, Unit, Workflow

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL_SECONDS = 0.2


class _AbandonedError(Exception):
    """Nobody waits for the copy any more."""


def transfer(
    label: str, total: int, copy: Callable[[Callable[[int], None]], None]
) -> Workflow[None]:
    """Run a copy in a thread and yield its progress in bytes.

    Abandoning the workflow breaks the copy off, which then removes its partial target.

    Args:
        label: What is copied where.
        total: Bytes to come.
        copy: Does the work; it is handed the function to call with the bytes of each step.

    Raises:
        HostError: Whatever `copy` raised.
    """
    yield Started(label)
    work = _Work(copy)
    try:
        done = 0
        while not work.ended:
            done += work.wait()
            yield Progress(label, done, total, Unit.BYTES)
    finally:
        work.abandon()
    work.check()
    yield Finished(label)


class _Work:
    """The thread that copies, and what it has told."""

    def __init__(self, copy: Callable[[Callable[[int], None]], None]) -> None:
        self._copy = copy
        self._counts: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive() and self._counts.empty()

    def wait(self) -> int:
        """Return the bytes told since the last call, after at most one pause."""
        try:
            count = self._counts.get(timeout=_POLL_SECONDS)
            while not self._counts.empty():
                count += self._counts.get_nowait()
        except queue.Empty:
            return 0
        return count

    def abandon(self) -> None:
        self._abandoned = True
        self._thread.join()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._copy(self._told)
        except BaseException as error:  # noqa: BLE001  (raised again by check, in the other thread)
            self._error = error

    def _told(self, count: int) -> None:
        if self._abandoned:
            raise _AbandonedError
        self._counts.put(count)
