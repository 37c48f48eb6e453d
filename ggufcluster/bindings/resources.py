"""Everything that a model in this process holds, and how it is given back."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any

from ggufcluster.errors import ConfigError, EngineFailedError, GgufClusterError, WorkerLostError
from ggufcluster.workflows.worker_group import stop_quietly

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ggufcluster.adapters.engine_library import EngineLibrary
    from ggufcluster.bindings.engine_thread import EngineThread
    from ggufcluster.wiring import World
    from ggufcluster.workflows.worker_group import WorkerGroup

_MSA_PATH, _MSA_INDEX = "GGUFCLUSTER_MSA", "GGUFCLUSTER_MSA_INDEX_TYPE"


class Resources:
    """Engine thread, native objects, workers and connections of one model.

    Args:
        world: Connections to hosts, closed at the end.
        group: The workers.
        thread: Where the engine runs.
        library: The engine.
        held: Where `_stack`, `_model` and `_ctx` of the model appear.
        msa: Path and index type of sparse attention, None for a model without.
    """

    def __init__(
        self,
        world: World,
        group: WorkerGroup,
        thread: EngineThread,
        library: EngineLibrary,
        *,
        held: dict[str, Any],
        msa: tuple[str, str] | None,
    ) -> None:
        self._world = world
        self._group = group
        self._thread = thread
        self._library = library
        self._held = held
        self.msa = msa
        self._closed = False
        self._watch = library.watch(thread.judge)
        _LIVING.add(self)

    def close(self) -> None:
        """Free the model and end its workers; a second time does nothing.

        What a lost worker has left unfinished in the engine cannot be freed and is let go.
        """
        if self._closed or not self._thread.is_here:
            return
        self._closed = True
        if self._thread.usable and "_stack" in self._held:
            with contextlib.suppress(GgufClusterError):
                self._thread.call(self._held["_stack"].close)
        if not self._thread.usable:
            _LOST.update(self._group.endpoints)
        self.disown()
        self._thread.stop()
        self._library.unwatch(self._watch)
        stop_quietly(self._group)
        self._world.close()

    def disown(self) -> None:
        """Forget the native objects; those that are not free yet would make us wait for ever."""
        for name in ("_model", "_ctx"):
            if native := self._held.get(name):
                vars(native).clear()  # with it goes what would free it
                native.__class__ = _Gone  # for tokenizers, too, which refer to it
                native._thread = self._thread  # noqa: SLF001 - it is one of ours now


class _Gone:
    """What a native object becomes when it is gone: it says why."""

    _thread: EngineThread

    def __getattr__(self, name: str) -> Any:
        self._thread.require()
        raise AttributeError(name)


_LIVING: weakref.WeakSet[Resources] = weakref.WeakSet()
# Connections to these are stuck in the engine until the process ends.
_LOST: set[str] = set()


def lost_ports() -> frozenset[int]:
    """Return the ports of workers that were lost, on which no new one may be started."""
    return frozenset(int(endpoint.rpartition(":")[2]) for endpoint in _LOST)


def require_fresh(endpoints: Iterable[str], library: EngineLibrary) -> None:
    """Refuse workers that a model of this process was lost on.

    Raises:
        WorkerLostError: One of them is.
        EngineFailedError: The engine cannot connect to any worker any more.
    """
    if library.stuck:
        raise EngineFailedError("an earlier model", reason=f"{library.stuck}; end this process")
    for endpoint in endpoints:
        if endpoint in _LOST:
            raise WorkerLostError(endpoint, reason="earlier in this process, which must be ended")


def choose_msa(library: EngineLibrary, wanted: tuple[str, str] | None) -> None:
    """Tell the engine which path of sparse attention to take; it has one for the process.

    Raises:
        ConfigError: A model that is loaded takes another.
    """
    if wanted is None:
        return
    others = {one.msa for one in _LIVING if one.msa and not one._closed} - {wanted}  # noqa: SLF001
    if others:
        path, kind = others.pop()
        reason = f"a loaded model takes {path} with {kind} index keys; one process has one path"
        raise ConfigError(reason, source="msa")
    library.set_variable(_MSA_PATH, wanted[0])
    library.set_variable(_MSA_INDEX, wanted[1])


def _disown_all() -> None:
    """Leave to the parent what is the parent's: a forked process has none of its threads."""
    for one in list(_LIVING):
        one.disown()


os.register_at_fork(after_in_child=_disown_all)
