"""Copies as workflows."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from ggufcluster.errors import DiskFullError
from ggufcluster.workflows.events import Event, Finished, Progress, Started, Unit
from ggufcluster.workflows.transfer import transfer

if TYPE_CHECKING:
    from collections.abc import Callable


def test_bytes_add_up() -> None:
    """The last progress tells all bytes, between a start and an end."""

    def copy(told: Callable[[int], None]) -> None:
        for _ in range(100):
            told(10)

    events = list(transfer("copying", 1000, copy))

    assert events[0] == Started("copying")
    assert events[-2] == Progress("copying", 1000, 1000, Unit.BYTES)
    assert events[-1] == Finished("copying")


def test_error_of_the_copy_is_raised() -> None:
    """What went wrong in the thread arrives in the caller, and no end is told."""

    def copy(told: Callable[[int], None]) -> None:
        told(1)
        raise DiskFullError("spark-2", path="/cache", need=5, free=1)

    events: list[Event] = []
    work = transfer("copying", 5, copy)
    with pytest.raises(DiskFullError, match="spark-2"):
        events.extend(work)

    assert Finished("copying") not in events


def test_abandoned_copy_is_broken_off() -> None:
    """Closing the workflow makes the next report of the copy raise, so that it clears up."""
    go_on = threading.Event()
    broken_off: list[bool] = []

    def copy(told: Callable[[int], None]) -> None:
        told(1)
        go_on.wait(10)
        try:
            while True:
                told(1)
        except BaseException:
            broken_off.append(True)
            raise

    work = transfer("copying", 5, copy)
    next(work)
    next(work)
    threading.Timer(0.1, go_on.set).start()
    work.close()

    assert broken_off == [True]
