"""End exactly what `up` started, on every host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.core.worker_address import SshWorker, parse_worker
from ggufcluster.errors import GgufClusterError, HostError, RecordError
from ggufcluster.workflows import processes
from ggufcluster.workflows.events import Finished, Note, Started, Warned, Workflow
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.workers import clear_stale, owner_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.record import ClusterRecord
    from ggufcluster.workflows.seams import Seams
    from ggufcluster.workflows.store import Store


def down(seams: Seams, store: Store, *, forget: bool = False) -> Workflow[bool]:
    """End the cluster; return whether there was one.

    Args:
        seams: The outside worlds.
        store: Where the record is kept.
        forget: Forget the record even if a host could not be reached, because it is gone for good.
            Should it come back, the next `up` that names it ends what is left there.

    Raises:
        RecordError: The record is damaged; with `forget`, what runs on this machine is ended all
            the same.
        HostError: A host could not be reached or a process did not end. Everything that could be
            ended was, and the record stays, so that a later `down` can finish.
    """
    with store.writer():
        try:
            record = store.load()
        except RecordError:
            if not forget:
                raise
            yield from clear_stale(head := survey(seams.local), owner=owner_of(head))
            store.forget()
            return True
        if record is None:
            yield Note("no cluster is up")
            return False
        try:
            yield from take_down(seams, store, record)
        except HostError as error:
            if not forget:
                raise
            yield Warned(f"forgotten all the same: {error}")
            store.forget()
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
