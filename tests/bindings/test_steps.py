"""Workflows as iterators with a result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ggufcluster.bindings.steps import Steps
from ggufcluster.workflows.events import Note

if TYPE_CHECKING:
    from ggufcluster.workflows.events import Event, Workflow


def work(undone: list[str]) -> Workflow[int]:
    """Yield two events and return a number; note when it is cut off."""
    try:
        yield Note("one")
        yield Note("two")
    except BaseException:
        undone.append("undone")
        raise
    return 7


def test_events_then_the_result() -> None:
    """Iterating gives the events; `result` then gives what came of them, as often as asked."""
    steps = Steps(work([]))
    assert list(steps) == [Note("one"), Note("two")]
    assert [steps.result(), steps.result()] == [7, 7]


def test_the_result_calls_back_with_what_is_left() -> None:
    """Asked for the result midway, the rest of the events go to the callback."""
    seen: list[Event] = []
    steps = Steps(work([]))
    first = next(iter(steps))
    assert steps.result(seen.append) == 7
    assert [first, *seen] == [Note("one"), Note("two")]


def test_closing_undoes_the_work() -> None:
    """Closed midway, the work is undone and has no result."""
    undone: list[str] = []
    steps = Steps(work(undone))
    next(iter(steps))
    steps.close()
    assert undone == ["undone"]
    with pytest.raises(RuntimeError):
        steps.result()
    assert list(steps) == []


def test_a_callback_that_raises_undoes_the_work() -> None:
    """What a callback raises comes out, after the work was undone."""
    undone: list[str] = []

    def refuse(event: Event) -> None:
        raise ValueError(event)

    with pytest.raises(ValueError, match="one"):
        Steps(work(undone)).result(refuse)
    assert undone == ["undone"]
