"""Workers for a model in a Python process: started and ended with it, and no cluster of `up`.

Their run folders lie beside those of `up`, under a name that tells the process they belong to: it
may end without a word, and the next one of this user then ends what it left.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.adapters.rpc import NO_ANSWER
from ggufcluster.core.build_id import Backend
from ggufcluster.core.devices import LOCAL, WorkerMemory
from ggufcluster.core.placement import check_count
from ggufcluster.core.record import WorkerRecord
from ggufcluster.core.worker_address import LocalWorkers, check_workers, parse_worker
from ggufcluster.errors import HostError, WorkerBusyError, WorkerNotReadyError
from ggufcluster.workflows import processes, workers
from ggufcluster.workflows.events import Note, Workflow
from ggufcluster.workflows.machines import Machine, survey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.engine import Engine
    from ggufcluster.core.wish import Wish
    from ggufcluster.core.worker_address import SshWorker
    from ggufcluster.workflows.seams import Seams
    from ggufcluster.workflows.up import Engines

_SUBFOLDER = "python"
_PROBE_SECONDS = 10.0


@dataclass(slots=True)
class WorkerGroup:
    """The workers of one model.

    Attributes:
        seams: The outside worlds.
        engines: How workers get their engine.
        wish: Names the workers; the rest of it says how to start them.
        attached: ``address:port`` of workers that run already and are left running.
        avoid: Ports on which a worker of this process was lost.
        memories: Each worker with its memory, in order, once `start` is through.
    """

    seams: Seams
    engines: Engines
    wish: Wish
    attached: Sequence[str] = ()
    avoid: frozenset[int] = frozenset()
    memories: list[WorkerMemory] = field(default_factory=list)
    _running: list[tuple[Remote, str]] = field(default_factory=list)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """``address:port`` of each worker, in order."""
        return tuple(memory.endpoint for memory in self.memories)

    def start(self, head: Machine, engine: Engine, *, layers: int, model: str) -> Workflow[None]:
        """Start every worker and learn its memory; whatever fails, none is left running.

        Raises:
            WorkerError: A worker is not ready, or runs another engine.
            HostError: A host cannot be reached.
            ConfigError: There are more workers than layers.
        """
        head = _apart(head)
        found = self._targets(head)
        check_count(model, layers, len(found) + len(self.attached))
        cluster = f"{os.getpid()}-{_start_of(os.getpid())}-{secrets.token_hex(4)}"
        owner = workers.owner_of(head)
        try:
            for machine in {id(machine): machine for machine, *_ in found}.values():
                yield from _clear_orphans(machine, owner)
            for machine, name, target, address in found:
                run = str(workers.runs_folder(machine) / cluster / name)
                record = WorkerRecord(name, target, run, address)
                yield from self._start_one(machine, record, engine, owner, here=machine is head)
            for endpoint in self.attached:
                self.memories.append(self._attach(endpoint, engine))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End what `start` started.

        Raises:
            HostError: A worker could not be ended; all others are.
        """
        failures = []
        while self._running:
            remote, run = self._running.pop()
            try:
                processes.clear(remote, run)
            except HostError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _targets(self, head: Machine) -> list[tuple[Machine, str, str, str]]:
        """Open every host; return machine, name, target and address of each worker."""
        wanted = [parse_worker(text) for text in self.wish.workers]
        check_workers(wanted, {}, ())
        found = []
        for address in wanted:
            if isinstance(address, LocalWorkers):
                names = workers.local_names(address.count)
                found += [(head, name, "local", "127.0.0.1") for name in names]
            else:
                found.append(self._far(address))
        return found

    def _far(self, worker: SshWorker) -> tuple[Machine, str, str, str]:
        remote = self.seams.connect(worker)
        peer = workers.worker_address(remote, worker, allow_public=self.wish.allow_public)
        return _apart(survey(remote)), worker.host, str(worker), peer

    def _start_one(
        self, machine: Machine, record: WorkerRecord, engine: Engine, owner: str, *, here: bool
    ) -> Workflow[None]:
        on_worker = engine
        if not here:
            on_worker = yield from self.engines.on_worker(machine.remote, engine)
        workers.require_driver(machine, on_worker)
        facts = survey(machine.remote).facts
        machine = replace(machine, facts=replace(facts, listening=facts.listening | self.avoid))
        self._running.append((machine.remote, record.run))
        started, report = yield from workers.start_worker(
            self.seams,
            machine,
            record,
            bin_folder=on_worker.bin,
            fingerprint=engine.fingerprint,
            owner=owner,
            ready_seconds=self.wish.ready_seconds,
        )
        gpu = on_worker.backend is Backend.CUDA
        self.memories.append(
            WorkerMemory(
                record.name,
                machine=LOCAL if here else record.name,
                devices=tuple((device.free, device.total) for device in report.devices),
                gpu=gpu,
                chips=facts.gpus if gpu else (),
                endpoint=started.endpoint,
            )
        )

    def _attach(self, endpoint: str, engine: Engine) -> WorkerMemory:
        try:
            report = self.seams.probe(endpoint, engine.fingerprint, timeout=_PROBE_SECONDS)
        except WorkerNotReadyError as error:
            if error.reason != NO_ANSWER:
                raise
            # It takes a connection at any time and answers when whoever uses it has left.
            reason = f"{error.reason}; it serves one model at a time, is it in use?"
            raise WorkerNotReadyError(endpoint, reason=reason, log_tail=error.log_tail) from error
        return WorkerMemory(
            endpoint,
            machine=LOCAL if endpoint.startswith("127.") else endpoint.rpartition(":")[0],
            devices=tuple((device.free, device.total) for device in report.devices),
            # RPC does not tell; assuming a GPU would run the plain reference if it were wrong.
            gpu=False,
            endpoint=endpoint,
        )


def _apart(machine: Machine) -> Machine:
    """Return a machine with a state folder of our own: `up` ends what it finds in its own."""
    folders = replace(machine.paths, state=machine.paths.state / _SUBFOLDER)
    return replace(machine, paths=folders)


def _clear_orphans(machine: Machine, owner: str) -> Workflow[None]:
    """End workers whose Python process is gone.

    Raises:
        WorkerBusyError: A worker of another head runs there.
    """
    for process in processes.owned(machine.remote, workers.runs_folder(machine)):
        if not process.state.life.holds_resources:
            continue
        if process.owner.split()[:1] != owner.split()[:1]:
            raise WorkerBusyError(machine.name, holder=process.owner.split(" ", 1)[-1])
        if not _lives(Path(process.run).parent.name):
            outcome = processes.clear(machine.remote, process.run)
            yield Note(f"{machine.name}: {outcome} a worker left by a process that is gone")


def _lives(group: str) -> bool:
    pid, _, rest = group.partition("-")
    return pid.isdigit() and _start_of(int(pid)) == rest.partition("-")[0]


def _start_of(pid: int) -> str:
    """Return when a process of this machine started, in clock ticks since boot; or nothing."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return text.rpartition(") ")[2].split()[19]


def stop_quietly(group: WorkerGroup) -> None:
    """End a group where nobody can be told that it failed; the next process ends the rest."""
    try:
        group.stop()
    except HostError:
        return
