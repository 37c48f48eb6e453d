"""A thread on which the engine runs, so that a call that never returns can be given up."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from ggufcluster.adapters.engine_library import THREAD_NAME
from ggufcluster.errors import (
    EngineFailedError,
    ForkedProcessError,
    GgufClusterError,
    ModelClosedError,
    WorkerLostError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ggufcluster.adapters.engine_library import Failure

Result = TypeVar("Result")


class _Call:
    """One call: what to do, and what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.done = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self.work()
        except BaseException as error:  # noqa: BLE001 - raised where the call was made
            self.error = error
        self.done.set()


class EngineThread:
    """Runs every call that may reach a worker, one at a time, for one model.

    Args:
        model: Name of the model, for messages.
        endpoints: The workers that it runs on.
    """

    def __init__(self, model: str, endpoints: frozenset[str] = frozenset()) -> None:
        self.endpoints = endpoints
        self._model = model
        self._owner = os.getpid()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._turn = threading.Lock()
        self._current: _Call | None = None
        self._dead: GgufClusterError | None = None
        # A thread that the engine does not give back must not keep the interpreter.
        self._thread = threading.Thread(
            target=self._run, name=f"{THREAD_NAME} {model}", daemon=True
        )
        self._thread.start()

    @property
    def usable(self) -> bool:
        """Whether calls can be made: not closed, nothing lost, not forked."""
        return self._dead is None and os.getpid() == self._owner

    @property
    def is_here(self) -> bool:
        """Whether this process is the one that it was made in."""
        return os.getpid() == self._owner

    def call(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the thread and return what it returns.

        Ctrl-C waits for it: the engine cannot be left in the middle of a step. A second one, since
        a frozen worker never answers, gives the model up.

        Raises:
            WorkerLostError: A worker was lost, now or before.
            EngineFailedError: The engine gave up, now or before.
            ModelClosedError: After `stop`.
            ForkedProcessError: In a forked process.
        """
        self.require()
        if threading.get_ident() == self._thread.ident:
            return work()
        with self._turn:
            call = self._begin(work)
            interrupt = self._wait(call)
        if interrupt is not None:
            raise interrupt
        result: Result = _result(call)
        return result

    def follow(self, work: Callable[[], Result], seconds: float) -> Generator[None, None, Result]:
        """Run `work` as `call` does, and yield each time that many seconds have passed.

        Closed early, it waits for the work, which should then be told to end.
        """
        with self._turn:
            call = self._begin(work)
            try:
                while not call.done.wait(seconds):
                    yield
            finally:
                self._wait(call)
        result: Result = _result(call)
        return result

    def _begin(self, work: Callable[[], Any]) -> _Call:
        self.require()
        call = self._current = _Call(work)
        self._calls.put(call)
        return call

    def require(self) -> None:
        """Raise what `call` would raise if it cannot be made."""
        if not self.is_here:
            raise ForkedProcessError(self._model, owner=self._owner)
        if self._dead is not None:
            raise self._dead.with_traceback(None)

    def judge(self, failure: Failure) -> bool:
        """Take a failure of the engine as this model's, if it is; say whether."""
        about = any(endpoint in failure.message for endpoint in self.endpoints)
        if failure.thread not in {0, self._thread.ident} and not about:
            return False
        self._dead = self._error(failure)
        call = self._current
        if call is not None:
            call.error = self._dead
            call.done.set()
        return True

    def stop(self) -> None:
        """End the thread, unless the engine has it; later calls say that the model was closed."""
        if not self.is_here:
            return
        if self._dead is None:
            self._dead = ModelClosedError(self._model)
            self._calls.put(None)
            if threading.get_ident() != self._thread.ident:
                self._thread.join()

    def _wait(self, call: _Call) -> KeyboardInterrupt | None:
        interrupt: KeyboardInterrupt | None = None
        while not call.done.is_set():
            try:
                call.done.wait()
            except KeyboardInterrupt as error:
                if interrupt is not None:
                    reason = "interrupted while it computed"
                    self._dead = EngineFailedError(self._model, reason=reason)
                    raise
                interrupt = error
        self._current = None
        return interrupt

    def _error(self, failure: Failure) -> GgufClusterError:
        if not failure.lost_worker:
            return EngineFailedError(self._model, reason=failure.message)
        named = [endpoint for endpoint in self.endpoints if endpoint in failure.message]
        worker = named[0] if named else "of this model"
        reason = failure.message.partition(f"worker {worker}")[2].lstrip(": ") or failure.message
        return WorkerLostError(worker, reason=reason)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call.run()
            del call  # else it lives on, with all that it refers to, until the next one


def _result(call: _Call) -> Any:
    if call.error is not None:
        raise call.error
    return call.value
