"""What a model holds and how it is given back, with pretended engines and workers."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.bindings import resources
from ggufcluster.bindings.engine_thread import EngineThread
from ggufcluster.bindings.resources import Resources, choose_msa, lost_ports, require_fresh
from ggufcluster.errors import (
    ConfigError,
    EngineFailedError,
    ForkedProcessError,
    HostUnreachableError,
    ModelClosedError,
    WorkerLostError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.adapters.engine_library import Failure

END = "10.0.0.2:50052"


class FakeLibrary:
    """An engine that keeps what it is told."""

    def __init__(self) -> None:
        self.stuck = ""
        self.watchers: dict[int, Any] = {}
        self.variables: dict[str, str | None] = {}

    def watch(self, watcher: Any) -> int:
        """Keep a watcher."""
        self.watchers[len(self.watchers)] = watcher
        return len(self.watchers) - 1

    def unwatch(self, number: int) -> None:
        """Drop a watcher."""
        del self.watchers[number]

    def set_variable(self, name: str, value: str | None) -> None:
        """Keep a variable."""
        self.variables[name] = value


class Native:
    """An object of llama_cpp."""

    def __init__(self) -> None:
        self.handle = 1


class Model:
    """The resources of a pretended model, with what became of each.

    Attributes:
        done: What was given back, in order.
    """

    def __init__(self, *, msa: tuple[str, str] | None = None, unreachable: bool = False) -> None:
        self.done: list[str] = []
        self.unreachable = unreachable
        self.endpoints = (END,)
        self.library = FakeLibrary()
        self.thread = EngineThread("toy", frozenset({END}))
        stack = ExitStack()
        stack.callback(self.done.append, "freed")
        native = Native()
        self.held: dict[str, Any] = {"_stack": stack, "_model": native, "_ctx": native}
        world: Any = SimpleNamespace(close=lambda: self.done.append("closed"))
        library: Any = self.library
        group: Any = self
        self.resources = Resources(world, group, self.thread, library, held=self.held, msa=msa)

    def stop(self) -> None:
        """End the workers."""
        self.done.append("stopped")
        if self.unreachable:
            raise HostUnreachableError("spark", reason="timed out")


@pytest.fixture(autouse=True)
def _nothing_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests have lost."""
    monkeypatch.setattr(resources, "_LOST", set())


@pytest.fixture
def model() -> Iterator[Model]:
    """A model that is closed at the end."""
    made = Model(msa=("generic", "f16"))
    yield made
    made.resources.close()


def lose(model: Model) -> None:
    """Lose its worker."""
    failure: Failure = SimpleNamespace(  # type: ignore[assignment]
        message=f"lost worker {END}: it ended", thread=1, lost_worker=True
    )
    assert model.thread.judge(failure)


def test_everything_is_given_back_once(model: Model) -> None:
    """Native objects first, then workers and connections; closing again does nothing."""
    model.resources.close()
    model.resources.close()
    assert model.done == ["freed", "stopped", "closed"]
    assert model.library.watchers == {}
    with pytest.raises(ModelClosedError):
        model.thread.require()
    assert lost_ports() == frozenset()


def test_what_is_gone_says_why(model: Model) -> None:
    """An object of a closed model raises that it is closed, not some attribute error."""
    native = model.held["_model"]  # as a tokenizer of llama_cpp keeps it
    assert native.handle == 1
    model.resources.close()
    with pytest.raises(ModelClosedError):
        _ = model.held["_ctx"].anything
    with pytest.raises(ModelClosedError):
        _ = native.handle


def test_what_a_lost_worker_holds_is_let_go(model: Model) -> None:
    """Nothing native is freed, its port and endpoint are not used again, workers are ended."""
    lose(model)
    model.resources.close()
    assert model.done == ["stopped", "closed"]
    assert lost_ports() == frozenset({50052})
    library: Any = FakeLibrary()
    require_fresh(["10.0.0.3:50052"], library)
    with pytest.raises(WorkerLostError, match="must be ended"):
        require_fresh([END], library)


def test_workers_that_cannot_be_ended_keep_nothing_else(model: Model) -> None:
    """A host that is away when a model is closed is no error there: nobody could be told."""
    model.unreachable = True
    model.resources.close()
    assert model.done == ["freed", "stopped", "closed"]


def test_an_engine_that_is_stuck_takes_no_further_model() -> None:
    """The engine connects under a lock that a parked thread holds: better said than waited for."""
    library: Any = FakeLibrary()
    library.stuck = "lost worker x"
    with pytest.raises(EngineFailedError, match="lost worker x; end this process"):
        require_fresh((), library)


def test_one_process_has_one_sparse_path(model: Model) -> None:
    """Another path is refused while a model lives; models without sparse attention do not care."""
    library: Any = model.library
    choose_msa(library, None)
    assert model.library.variables == {}
    choose_msa(library, ("generic", "f16"))
    with pytest.raises(ConfigError, match="generic with f16"):
        choose_msa(library, ("native", "f16"))
    model.resources.close()
    choose_msa(library, ("native", "f16"))
    assert set(model.library.variables.values()) == {"native", "f16"}


def test_a_forked_process_gives_nothing_back(model: Model) -> None:
    """In the child, objects say whose they are and closing leaves the parent's alone.

    The child is pretended: a thread's process is another one. tests/bindings/test_llama.py forks.
    """
    parent = model.thread._owner
    model.thread._owner = parent + 1
    resources._disown_all()
    model.resources.close()
    with pytest.raises(ForkedProcessError):
        _ = model.held["_ctx"].anything
    assert model.done == []
    model.thread._owner = parent
    model.resources.close()
    assert model.done == ["freed", "stopped", "closed"]
