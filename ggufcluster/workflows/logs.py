"""Show the log of the head or of a worker, whole, in part, or as it grows."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.command import command
from ggufcluster.core.worker_address import SshWorker, parse_worker
from ggufcluster.errors import ClusterUnhealthyError, ConfigError, RemoteCommandError
from ggufcluster.workflows import processes
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.workers import runs_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.record import ClusterRecord
    from ggufcluster.workflows.seams import Seams


def logs(
    seams: Seams, record: ClusterRecord | None, who: str, *, lines: int, follow: bool
) -> Iterator[str]:
    """Yield lines of the log of ``head``, of a worker by name, or of the n-th worker.

    Without a record: of the log that the last cluster left on this machine, if any.

    Raises:
        ConfigError: No such part of the cluster.
        ClusterUnhealthyError: No cluster is up and no log was left.
        HostError: Its host cannot be reached, or the log is not there.
    """
    if record is None:
        yield from _left(seams, who, lines)
        return
    remote, run = _find(seams, record, who)
    tail = command("tail", "-n", str(lines), *(("-F",) if follow else ()), processes.log_path(run))
    yield from remote.stream(tail, quiet_timeout=None if follow else 30.0)


def _left(seams: Seams, who: str, lines: int) -> Iterator[str]:
    runs = runs_folder(survey(seams.local))
    log = processes.last_log_path(str(runs / "cluster" / PurePosixPath(who).name))
    try:
        yield from seams.local.stream(command("tail", "-n", str(lines), log), quiet_timeout=30.0)
    except RemoteCommandError:
        reason = f"no cluster is up, and none left a log of {who!r} on this machine"
        raise ClusterUnhealthyError((reason,)) from None


def _find(seams: Seams, record: ClusterRecord, who: str) -> tuple[Remote, str]:
    if who == "head":
        return seams.local, record.head_run
    names = {worker.name: worker for worker in record.workers}
    numbers = {f"worker-{number}": worker for number, worker in enumerate(record.workers, 1)}
    first = {"worker": record.workers[0]} if record.workers else {}
    worker = {**first, **numbers, **names}.get(who)
    if worker is None:
        known = ", ".join(["head", *names])
        raise ConfigError(f"the cluster has no {who!r}; it has {known}", source="logs")
    target = parse_worker(worker.target)
    remote = seams.connect(target) if isinstance(target, SshWorker) else seams.local
    return remote, worker.run
