"""Watch llama-server load a model: show progress, notice every way in which it can fail.

The limit is on no progress, never on total time: a first load may rightly take half an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ggufcluster.core.command import command
from ggufcluster.core.managed_process import Life
from ggufcluster.core.server_log import telling_line
from ggufcluster.core.sockets import bytes_sent, sockets_command
from ggufcluster.core.units import seconds_text, size_text
from ggufcluster.errors import (
    HeadStartError,
    HostError,
    LoadStalledError,
    WorkerNotReadyError,
)
from ggufcluster.workflows import processes
from ggufcluster.workflows.events import Finished, Progress, Started, Unit, Workflow

if TYPE_CHECKING:
    from ggufcluster.adapters.http import Api
    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.record import ClusterRecord, WorkerRecord
    from ggufcluster.workflows.machines import Machine
    from ggufcluster.workflows.seams import Seams

_POLL_SECONDS = 0.25
_WORKER_CHECK_SECONDS = 3.0
_SHORT = 10.0
_FROZEN = "it is frozen (stopped by a signal)"


@dataclass(slots=True)
class LoadWatch:
    """One load under way; `run` yields events until the server is ready.

    Attributes:
        seams: The outside worlds.
        head: This machine.
        record: The cluster.
        api: The server's API.
        machines: The host of each worker, by worker name.
        expected: Bytes that each worker should get, by worker name.
        stall_seconds: Give up after this long with no progress.
    """

    seams: Seams
    head: Machine
    record: ClusterRecord
    api: Api
    machines: dict[str, Machine]
    expected: dict[str, int]
    stall_seconds: float
    _last_sign: tuple[object, ...] = ()
    _last_change: float = 0.0
    _next_worker_check: float = 0.0
    _sent: dict[str, int] = field(default_factory=dict)

    def run(self) -> Workflow[None]:
        """Wait until the server answers that it is ready.

        Raises:
            HeadStartError: llama-server ended or is frozen.
            WorkerNotReadyError: A worker ended or was frozen meanwhile.
            LoadStalledError: Nothing moved for `stall_seconds`.
        """
        label = f"Loading {self.record.model}"
        start = self._last_change = self.seams.clock()
        yield Started(label)
        while self.api.health() != "ok":
            self._check_head()
            self._check_workers()
            yield from self._progress()
            self._check_stall()
            self.seams.sleep(_POLL_SECONDS)
        self._check_head()  # somebody else may answer on that port
        yield from self._progress()
        yield Finished(label, self._summary(self.seams.clock() - start))

    def _summary(self, seconds: float) -> str:
        sent = sum(self._sent.values())
        told = f"{size_text(sent)} sent " if sent else ""
        return f"{told}in {seconds_text(seconds)}"

    def check(self) -> None:
        """Make sure that head and workers live, now.

        Raises:
            HeadStartError: llama-server ended or is frozen.
            WorkerNotReadyError: A worker ended or is frozen.
        """
        self._next_worker_check = 0.0
        self._check_workers()
        self._check_head()

    def _progress(self) -> Workflow[None]:
        # A worker takes big tensors that it has seen before from its own cache, so fewer bytes
        # may travel than it gets; the bar then ends early, which is right.
        self._sent = self._bytes_by_worker()
        for worker in self.record.workers:
            done = self._sent.get(worker.name, 0)
            total = max(self.expected.get(worker.name, 0), done)
            yield Progress(f"to {worker.name}", done, total, Unit.BYTES)

    def _bytes_by_worker(self) -> dict[str, int]:
        endpoints = {worker.endpoint: worker.name for worker in self.record.workers}
        try:
            table = self.head.remote.run(sockets_command(), timeout=_SHORT).stdout
        except HostError:
            return self._sent  # no ss on this machine: the load works, only unseen
        sent = bytes_sent(table, tuple(endpoints))
        return {name: sent[endpoint] for endpoint, name in endpoints.items()}

    def _check_head(self) -> None:
        state = processes.inspect(self.head.remote, self.record.head_run)
        if state.life is Life.ALIVE:
            return
        self._next_worker_check = 0.0
        self._check_workers()  # a lost worker takes the head with it: name the cause
        tail = processes.log_tail(self.head.remote, self.record.head_run, lines=60)
        log = processes.last_log_path(self.record.head_run)  # where it will be after clean-up
        reason = _FROZEN if state.life is Life.FROZEN else telling_line(tail)
        raise HeadStartError(reason, log=log, log_tail=tail[-12:])

    def _check_workers(self) -> None:
        if self.seams.clock() < self._next_worker_check:
            return
        for worker in self.record.workers:
            require_alive(self.machines[worker.name], worker)
        self._next_worker_check = self.seams.clock() + _WORKER_CHECK_SECONDS

    def _check_stall(self) -> None:
        sign = self._sign_of_life()
        now = self.seams.clock()
        if sign != self._last_sign:
            self._last_sign, self._last_change = sign, now
        elif now - self._last_change > self.stall_seconds:
            raise LoadStalledError(
                now - self._last_change,
                phase=f"loading {self.record.model}",
                log=processes.last_log_path(self.record.head_run),
            )

    def _sign_of_life(self) -> tuple[object, ...]:
        log = processes.log_path(self.record.head_run)
        return (*self._sent.values(), _size(self.head.remote, log), self._disk_reads())

    def _disk_reads(self) -> str:
        """Return the head's count of bytes read: a model on a slow disk shows here first."""
        pid = processes.inspect(self.head.remote, self.record.head_run).pid
        reads = command("grep", "rchar", f"/proc/{pid}/io")
        return self.head.remote.run(reads, timeout=_SHORT, check=False).stdout


def require_alive(machine: Machine, worker: WorkerRecord) -> None:
    """Raise `WorkerNotReadyError` unless the worker's process runs and is not frozen."""
    state = processes.inspect(machine.remote, worker.run)
    if state.life is not Life.ALIVE:
        tail = processes.log_tail(machine.remote, worker.run)
        reason = _FROZEN if state.life is Life.FROZEN else "its RPC server has ended"
        raise WorkerNotReadyError(worker.name, reason=reason, log_tail=tail)


def _size(remote: Remote, path: str) -> str:
    return remote.run(command("stat", "-c", "%s", path), timeout=_SHORT, check=False).stdout
