"""Bring one worker from nothing to ready, and check what stands in its way before."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.build_id import Backend
from ggufcluster.core.host import free_port
from ggufcluster.core.launch import worker_command
from ggufcluster.core.managed_process import Life
from ggufcluster.core.units import size_text
from ggufcluster.errors import (
    ToolchainError,
    WorkerAddressError,
    WorkerBusyError,
    WorkerNotReadyError,
)
from ggufcluster.workflows import processes
from ggufcluster.workflows.events import Finished, Note, Started, Warned, Workflow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ggufcluster.adapters.remote import FarRemote
    from ggufcluster.adapters.rpc import LinkSpeed, WorkerReport
    from ggufcluster.core.engine import Engine
    from ggufcluster.core.record import WorkerRecord
    from ggufcluster.core.worker_address import SshWorker
    from ggufcluster.workflows.machines import Machine
    from ggufcluster.workflows.seams import Seams

FIRST_PORT = 50052
_PROBE_SECONDS = 10.0
_POLL_SECONDS = 0.2
_PORT_LOST = "Address already in use"
_SLOW_RATE = 150e6
_SLOW_ROUND_TRIP = 2e-3


def owner_of(machine: Machine) -> str:
    """Return the line by which processes of this user on this machine know each other."""
    folder = str(machine.paths.state).replace(" ", "_")
    return f"{machine.facts.machine_id}:{folder} {machine.facts.user}@{machine.facts.name}"


def runs_folder(machine: Machine) -> PurePosixPath:
    """Return the folder that holds the run folders of all clusters on a machine."""
    return machine.paths.state / "run"


def clear_stale(machine: Machine, *, owner: str, keep: str | None = None) -> Workflow[None]:
    """End what an earlier cluster of ours left on a machine; refuse if another head is there.

    Args:
        machine: Where to look.
        owner: Our own line, see `owner_of`.
        keep: Id of a cluster that stays.

    Raises:
        WorkerBusyError: A worker of another head runs there.
    """
    for process in processes.owned(machine.remote, runs_folder(machine)):
        if not process.state.life.holds_resources or _cluster_of(process.run) == keep:
            continue
        if process.owner.split()[:1] != owner.split()[:1]:
            raise WorkerBusyError(machine.name, holder=process.owner.split(" ", 1)[-1])
        outcome = processes.clear(machine.remote, process.run)
        yield Note(f"{machine.name}: {outcome} a process left by an earlier run ({process.run})")


def warn_of_company(machine: Machine) -> Workflow[None]:
    """Name whoever else holds much memory, and services that would end a big load."""
    for hog in machine.facts.memory_hogs(ours=frozenset()):
        size = size_text(hog.memory) if hog.memory else "memory"
        yield Warned(f"{machine.name}: {hog.name} (pid {hog.pid}) holds {size}")
    for guard in machine.facts.guards:
        yield Warned(
            f"{machine.name}: {guard} is active and may end the load when memory gets low;"
            f" stop it for the load: sudo systemctl stop {guard}"
        )


def local_names(count: int) -> list[str]:
    """Return the names of that many workers on this machine."""
    return ["local"] if count == 1 else [f"local-{number}" for number in range(1, count + 1)]


def worker_address(remote: FarRemote, worker: SshWorker, *, allow_public: bool) -> str:
    """Return the address by which this machine reaches a worker: the one it must listen on.

    Raises:
        WorkerAddressError: It is this machine, or an address on which RPC must not listen.
    """
    address = remote.peer_address
    if address == remote.own_address:
        raise WorkerAddressError(
            str(worker), reason=f"{address} is this machine; write 'local' for workers on it"
        )
    check_address(address, worker=str(worker), allow_public=allow_public)
    return address


def check_address(address: str, *, worker: str, allow_public: bool) -> None:
    """Refuse to listen where everybody can connect: RPC has no password.

    Raises:
        WorkerAddressError: The address is public or means every address.
    """
    parsed = ipaddress.ip_address(address)
    if parsed.version != 4:
        raise WorkerAddressError(worker, reason=f"{address} is IPv6, which llama.cpp's RPC lacks")
    if parsed.is_unspecified:
        raise WorkerAddressError(worker, reason=f"{address} would listen on every address")
    if parsed.is_global and not allow_public:
        raise WorkerAddressError(
            worker, reason=f"{address} is a public address; RPC has no password"
        )


def refuse_twins(found: Iterable[tuple[str, str]]) -> None:
    """Refuse a machine that is named twice, given what was written and the address of each worker.

    Raises:
        WorkerAddressError: Naming the second one.
    """
    seen: dict[str, str] = {}
    for target, address in found:
        twin = seen.get(address)
        if twin is not None:
            raise WorkerAddressError(target, reason=f"is the same machine as {twin} ({address})")
        seen[address] = target


def require_driver(machine: Machine, engine: Engine) -> None:
    """Refuse a CUDA engine where the driver shows no GPU: llama.cpp would use the CPU in silence.

    Raises:
        ToolchainError: There is no working driver.
    """
    if engine.backend is Backend.CUDA and not machine.facts.gpus:
        reason = "the engine is built for CUDA, but nvidia-smi shows no GPU"
        raise ToolchainError("CUDA driver", host=machine.name, reason=reason)


def start_worker(
    seams: Seams,
    machine: Machine,
    worker: WorkerRecord,
    *,
    bin_folder: PurePosixPath,
    fingerprint: str,
    owner: str,
    ready_seconds: float,
) -> Workflow[tuple[WorkerRecord, WorkerReport]]:
    """Start an RPC server and wait until it has shaken hands and reported its memory.

    Raises:
        WorkerNotReadyError: It ended, or was not ready in time.
        WorkerFingerprintError: Something else answered on its port.
    """
    label = f"Starting {worker.name}"
    yield Started(label)
    taken = set(machine.facts.listening)
    while True:
        worker = _with_port(worker, taken)
        program = worker_command(bin_folder=bin_folder, address=worker.address, port=worker.port)
        processes.start(machine.remote, worker.run, program, owner=owner)
        try:
            report = _await_ready(seams, machine, worker, fingerprint, ready_seconds)
            break
        except WorkerNotReadyError as error:
            if not any(_PORT_LOST in line for line in error.log_tail):
                raise
            # Somebody else was quicker between our look and our start.
            processes.clear(machine.remote, worker.run)
            taken.add(worker.port)
    total = sum(device.total for device in report.devices)
    yield Finished(label, f"{worker.endpoint}, {_devices(report)}, {size_text(total)}")
    return worker, report


def _with_port(worker: WorkerRecord, taken: set[int]) -> WorkerRecord:
    port = free_port(FIRST_PORT, frozenset(taken))
    if port is None:
        raise WorkerNotReadyError(worker.name, reason=f"no free port from {FIRST_PORT} upwards")
    return replace(worker, port=port)


def describe_link(worker: WorkerRecord, link: LinkSpeed) -> Workflow[WorkerRecord]:
    """Report how good the link to a worker is, aloud if it is poor."""
    figures = f"{link.round_trip * 1e6:.0f} us round trip, {link.rate / 1e6:.0f} MB/s over TCP"
    yield Note(f"{worker.name}: {figures}")
    if link.rate < _SLOW_RATE or link.round_trip > _SLOW_ROUND_TRIP:
        yield Warned(
            f"{worker.name}: the link behaves like Wi-Fi or 1 GbE ({figures});"
            " use the address of the fast network port"
        )
    return replace(worker, round_trip=link.round_trip, rate=link.rate)


def _await_ready(
    seams: Seams, machine: Machine, worker: WorkerRecord, fingerprint: str, seconds: float
) -> WorkerReport:
    deadline = seams.clock() + seconds
    listens = False
    while True:
        state = processes.inspect(machine.remote, worker.run)
        if state.life is not Life.ALIVE:
            raise _not_ready(machine, worker, f"the RPC server is {state.life.value}")
        try:
            timeout = max(1.0, min(_PROBE_SECONDS, deadline - seams.clock()))
            # Until it has said so, whoever answers on its port is somebody else.
            listens = listens or _says_listening(machine, worker)
            if listens:
                return seams.probe(worker.endpoint, fingerprint, timeout=timeout)
            reason = "it does not listen"
        except WorkerNotReadyError as error:
            reason = error.reason
        if seams.clock() >= deadline:
            raise _not_ready(machine, worker, f"{reason} (waited {seconds:.0f} s)")
        seams.sleep(_POLL_SECONDS)


def _says_listening(machine: Machine, worker: WorkerRecord) -> bool:
    said = f"listening on {worker.endpoint},"
    return any(said in line for line in processes.log_tail(machine.remote, worker.run))


def _not_ready(machine: Machine, worker: WorkerRecord, reason: str) -> WorkerNotReadyError:
    tail = processes.log_tail(machine.remote, worker.run)
    return WorkerNotReadyError(worker.name, reason=reason, log_tail=tail)


def _devices(report: WorkerReport) -> str:
    count = len(report.devices)
    return "1 device" if count == 1 else f"{count} devices"


def _cluster_of(run: str) -> str:
    return PurePosixPath(run).parent.name
