"""Look at the hosts of a cluster and plan for them, without starting or writing anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.build_id import Backend
from ggufcluster.core.devices import (
    LOCAL,
    WorkerMemory,
    expected_memory,
    head_cpu,
    worker_devices,
)
from ggufcluster.core.expectation import Expectation, expect
from ggufcluster.core.host import free_port
from ggufcluster.core.kv_cache import KV_ELEMENT_BYTES
from ggufcluster.core.placement import Device
from ggufcluster.core.plan import Plan, largest_context, make_plan
from ggufcluster.core.worker_address import LocalWorkers, check_workers, parse_worker
from ggufcluster.workflows import workers
from ggufcluster.workflows.events import Finished, Started, Workflow
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.models import find_model, read_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggufcluster.core.model import ModelFacts
    from ggufcluster.core.wish import Wish
    from ggufcluster.core.worker_address import WorkerAddress
    from ggufcluster.workflows.machines import Machine
    from ggufcluster.workflows.seams import Seams

_CACHE_TYPES = ("f16", "q8_0", "q4_0")
_BITS = 8


@dataclass(frozen=True, slots=True)
class ExpectedWorker:
    """A worker as it would be.

    Attributes:
        name: The worker, for people.
        machine: Its host.
        address: Where it would listen.
        port: The port there.
        local: Whether it would run beside the head.
        link: Bytes per second of the slower port of its link, 0 if unknown.
    """

    name: str
    machine: Machine
    address: str
    port: int
    local: bool
    link: float

    @property
    def endpoint(self) -> str:
        """``address:port`` as llama.cpp takes it."""
        return f"{self.address}:{self.port}"

    def memory(self, backend: Backend | None) -> WorkerMemory:
        """Return what its engine would report, by what the host shows now."""
        facts = self.machine.facts
        gpu = bool(facts.gpus) and backend is not Backend.CPU
        return WorkerMemory(
            self.name,
            LOCAL if self.local else self.name,
            expected_memory(facts, gpu=gpu),
            gpu=gpu,
            chips=facts.gpus if gpu else (),
            endpoint=self.endpoint,
        )


@dataclass(frozen=True, slots=True)
class HeadView:
    """This machine as the head, and the model that it would serve."""

    machine: Machine
    path: Path
    model: ModelFacts


@dataclass(frozen=True, slots=True)
class Outlook:
    """A plan for hosts as they are now.

    Attributes:
        plan: The plan.
        workers: The workers it would use.
        expectation: Bounds on its speed, if anything is placed.
        largest: The largest context that fits, by type of the KV cache.
    """

    plan: Plan
    workers: tuple[ExpectedWorker, ...]
    expectation: Expectation | None
    largest: Mapping[str, int]


def outlook(seams: Seams, wish: Wish, *, backend: Backend | None) -> Workflow[Outlook]:
    """Plan for the hosts as they are, and say what to expect.

    The real split follows the memory that the workers report once they run; here it follows what
    the hosts show now.

    Raises:
        GgufClusterError: Whatever would stop `up` before it starts anything.
    """
    yield Started("Looking at the hosts")
    plan, found = plan_for_hosts(seams, wish, look_at_head(seams, wish), backend=backend)
    yield Finished("Looking at the hosts")
    yield Started("Trying other caches")
    largest = {
        kind: largest_context(
            wish, plan.needs.model, devices=plan.devices, head=plan.head, kv_type=kind
        )
        for kind in dict.fromkeys((plan.spec.kv_type, *_CACHE_TYPES))
        if kind in KV_ELEMENT_BYTES
    }
    yield Finished("Trying other caches")
    links = {worker.name: worker.link for worker in found}
    return Outlook(plan, tuple(found), expect(plan, links=links), largest)


def look_at_head(seams: Seams, wish: Wish) -> HeadView:
    """Return this machine and the model that is wished for; raises `ModelFileError`."""
    head = survey(seams.local)
    path = find_model(wish.model, Path(head.paths.models))
    return HeadView(head, path, read_model(path))


def plan_for_hosts(
    seams: Seams, wish: Wish, view: HeadView, *, backend: Backend | None
) -> tuple[Plan, list[ExpectedWorker]]:
    """Return the plan for what the hosts show now, and the workers that it would use.

    `backend` is what is asked to be built; None means for whatever a host has.

    Raises:
        GgufClusterError: A host cannot be reached, or the model is not there or does not fit.
    """
    head = view.machine
    found = _expected_workers(seams, head, wish)
    devices = worker_devices([worker.memory(backend) for worker in found])
    # Workers on this machine already offer its GPUs; their memory must not count twice.
    if not any(worker.local for worker in found) and backend is not Backend.CPU:
        devices += _own_gpus(head)
    plan = make_plan(
        wish,
        view.model,
        PurePosixPath(view.path),
        devices=devices,
        endpoints=[worker.endpoint for worker in found],
        head=head_cpu(head.facts),
    )
    return plan, found


def _own_gpus(head: Machine) -> list[Device]:
    facts = head.facts
    return [
        Device(f"CUDA{number}", "head", free=free, total=total, chip=chip, with_head=facts.unified)
        for number, (chip, (free, total)) in enumerate(
            zip(facts.gpus, expected_memory(facts, gpu=True), strict=False)
        )
        if facts.gpus
    ]


def _expected_workers(seams: Seams, head: Machine, wish: Wish) -> list[ExpectedWorker]:
    found: list[ExpectedWorker] = []
    taken: dict[str, set[int]] = {}
    wanted = [parse_worker(text) for text in wish.workers]
    check_workers(wanted, {}, ())
    for address in wanted:
        places = _places(seams, head, address, allow_public=wish.allow_public)
        for name, machine, where, link in places:
            ports = taken.setdefault(where, set(machine.facts.listening))
            port = free_port(workers.FIRST_PORT, frozenset(ports)) or workers.FIRST_PORT
            ports.add(port)
            local = machine is head
            found.append(ExpectedWorker(name, machine, where, port, local, link))
    workers.refuse_twins([(one.name, one.address) for one in found if not one.local])
    return found


def _places(
    seams: Seams, head: Machine, address: WorkerAddress, *, allow_public: bool
) -> list[tuple[str, Machine, str, float]]:
    if isinstance(address, LocalWorkers):
        return [(name, head, "127.0.0.1", 0.0) for name in workers.local_names(address.count)]
    remote = seams.connect(address)
    where = workers.worker_address(remote, address, allow_public=allow_public)
    machine = survey(remote)
    ports = (head.facts.links.get(remote.own_address, 0), machine.facts.links.get(where, 0))
    link = min((speed for speed in ports if speed), default=0) / _BITS
    return [(address.host, machine, where, link)]
