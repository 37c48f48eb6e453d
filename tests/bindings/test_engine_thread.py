"""The thread on which an engine runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.adapters.engine_library import Failure
from ggufcluster.bindings.engine_thread import EngineThread
from ggufcluster.errors import EngineFailedError, ModelClosedError, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

END = "10.0.0.2:50052"
LOST = f"lost worker {END}: its RPC server ended"


def drain(steps: Generator[None, None, Any]) -> Any:
    """Follow to the end and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    """A thread of a model on one worker."""
    made = EngineThread("toy", frozenset({END}))
    yield made
    made.stop()


def test_it_returns_and_raises(thread: EngineThread) -> None:
    """What the work returns or raises comes out; it runs elsewhere, and calls of itself inline."""
    here = threading.get_ident()
    assert thread.call(threading.get_ident) != here
    assert thread.call(lambda: thread.call(lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0)
    assert thread.call(lambda: 4) == 4


def test_following_yields_while_it_waits(thread: EngineThread) -> None:
    """Followed work yields now and then, and its result is the generator's."""
    go = threading.Event()
    steps = thread.follow(lambda: go.wait(30) and 5, 0.001)
    next(steps)
    go.set()
    assert drain(steps) == 5


def test_a_failure_ends_the_call_that_waits(thread: EngineThread) -> None:
    """A call that will never return is given up when its worker is lost, and so is every later."""
    begun, never = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        never.wait()

    raised: list[BaseException] = []

    def ask() -> None:
        try:
            thread.call(hang)
        except WorkerLostError as error:
            raised.append(error)

    caller = threading.Thread(target=ask)
    caller.start()
    begun.wait()
    mine = thread.judge(Failure(LOST, 1, lost_worker=True))
    caller.join()
    never.set()

    assert mine is True
    assert [str(error) for error in raised] == [f"lost worker {END}: its RPC server ended"]
    with pytest.raises(WorkerLostError):
        thread.call(lambda: 1)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure("lost worker 10.0.0.3:1: gone", 1, lost_worker=True), None),
        (Failure("lost worker 10.0.0.3:1: gone", 0, lost_worker=True), WorkerLostError),
        (Failure("GGML_ASSERT(x) failed", 0, lost_worker=False), EngineFailedError),
    ],
)
def test_a_failure_is_judged_by_what_it_names(
    thread: EngineThread, failure: Failure, kind: type[Exception] | None
) -> None:
    """Another model's worker is not ours; what is nobody's is everybody's."""
    assert thread.judge(failure) is (kind is not None)
    if kind is None:
        thread.require()
    else:
        with pytest.raises(kind):
            thread.require()


def test_stopped_it_says_closed(thread: EngineThread) -> None:
    """After `stop` its thread is gone and calls say that the model was closed."""
    assert thread._thread.is_alive()
    thread.stop()
    thread.stop()
    assert not thread._thread.is_alive()
    with pytest.raises(ModelClosedError, match="toy was closed"):
        thread.call(lambda: 1)


def test_a_second_interrupt_gives_up(thread: EngineThread) -> None:
    """One Ctrl-C waits for the step that is computed; another leaves it, and the model is lost."""
    never = threading.Event()

    class Impatient(threading.Event):
        """A wait that is interrupted each time."""

        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    call = thread._begin(never.wait)
    call.done = Impatient()
    with pytest.raises(KeyboardInterrupt):
        thread._wait(call)
    never.set()
    assert not thread.usable
    with pytest.raises(EngineFailedError, match="interrupted while it computed"):
        thread.call(lambda: 1)
