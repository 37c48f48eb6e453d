"""A workflow as Python users meet it: an iterator of events with a result."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ggufcluster.workflows.events import Event, Workflow

Result = TypeVar("Result")


class Steps(Generic[Result]):
    """Work that goes on as its events are taken.

    Iterate to follow it, then ask for `result`; or ask for `result` at once. Leaving it unfinished
    and calling `close` undoes what was begun, as Ctrl-C does on the command line.
    """

    def __init__(self, workflow: Workflow[Result]) -> None:
        self._workflow = workflow
        self._results: list[Result] = []
        self._over = False

    def __iter__(self) -> Iterator[Event]:
        while not self._over:
            try:
                event = next(self._workflow)
            except StopIteration as end:
                self._over = True
                self._results.append(end.value)
            except BaseException:
                self._over = True
                raise
            else:
                yield event

    def result(self, on_event: Callable[[Event], object] | None = None) -> Result:
        """Go on to the end and return what came of it.

        Args:
            on_event: Called with each event that is left. What it raises ends the work.

        Raises:
            GgufClusterError: Of the kind that tells what failed.
        """
        try:
            for event in self:
                if on_event is not None:
                    on_event(event)
        except BaseException:
            self.close()
            raise
        if not self._results:
            raise RuntimeError("the work was closed or has failed before")
        return self._results[0]

    def close(self) -> None:
        """Give up; what was begun is undone."""
        self._over = True
        self._workflow.close()


async def begin_in_thread(
    begin: Callable[[Callable[[Event], object]], Result],
    *,
    on_event: Callable[[Event], object] | None,
    undo: Callable[[Result], object],
) -> Result:
    """Do in a thread what begins something; cancelled, it ends with nothing of it left.

    Args:
        begin: Called with what takes its events; what that raises must undo what was begun.
        on_event: Called with each event, in that thread.
        undo: Called in a thread with what came of it, if it was done as the task was cancelled.
    """
    given_up: list[bool] = []

    def follow(event: Event) -> None:
        if given_up:
            raise asyncio.CancelledError
        if on_event is not None:
            on_event(event)

    work = asyncio.ensure_future(asyncio.to_thread(begin, follow))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        given_up.append(True)
        (ended,) = await asyncio.gather(work, return_exceptions=True)
        if not isinstance(ended, BaseException):
            await asyncio.to_thread(undo, ended)
        raise
