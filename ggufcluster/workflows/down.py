"""End exactly what `up` started, on every host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.core.worker_address import SshWorker, parse_worker
from ggufcluster.errors import GgufClusterError, HostError
from ggufcluster.workflows import processes
from ggufcluster.workflows.events import Finished, Note, Started, Warned, Workflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.record import ClusterRecord
    from ggufcluster.workflows.seams import Seams
    from ggufcluster.workflows.store import Store


def down(seams: Seams, store: Store) -> Workflow[bool]:
    """End the cluster; return whether there was one.

    Raises:
        HostError: A host could not be reached or a process did not end. Everything that could be
            ended was, and the record stays, so that a later `down` can finish.
    """
    with store.writer():
        record = store.load()
        if record is None:
            yield Note("no cluster is up")
            return False
        yield from take_down(seams, store, record)
        return True


def take_down(seams: Seams, store: Store, record: ClusterRecord) -> Workflow[None]:
    """End head and workers of a record, head first, then forget the record."""
    failures: list[GgufClusterError] = []
    yield from _end("the head", record.head_run, lambda: seams.local, failures)
    for worker in record.workers:
        target = parse_worker(worker.target)
        remote = _opener(seams, target) if isinstance(target, SshWorker) else lambda: seams.local
        yield from _end(worker.name, worker.run, remote, failures)
    if failures:
        raise failures[0]
    store.forget()


def _opener(seams: Seams, target: SshWorker) -> Callable[[], Remote]:
    return lambda: seams.connect(target)


def _end(
    name: str, run: str, open_remote: Callable[[], Remote], failures: list[GgufClusterError]
) -> Workflow[None]:
    label = f"Ending {name}"
    yield Started(label)
    try:
        remote = open_remote()
        outcome = processes.clear(remote, run)
    except HostError as error:
        failures.append(error)
        yield Warned(f"{name}: {error}")
        return
    yield Finished(label, outcome)
