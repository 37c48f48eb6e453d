"""Name the devices of a cluster the way llama.cpp will, in pipeline order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.placement import Device
from ggufcluster.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.core.host import HostFacts

_LISTED = re.compile(
    r"^\s+(?P<name>(?!CPU)\w+): (?P<description>.*)"
    r" \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)$"
)


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """Free and total bytes of each device of one worker.

    Attributes:
        name: The worker, for people.
        machine: Which machine it is on; workers on one machine share its memory.
        devices: (free, total) of each device, in the worker's order.
        gpu: Whether its engine computes on GPUs.
        chips: What the driver calls each GPU, in the same order, as far as known.
        endpoint: ``address:port`` on which it listens, if known.
    """

    name: str
    machine: str
    devices: tuple[tuple[int, int], ...]
    gpu: bool = True
    chips: tuple[str, ...] = ()
    endpoint: str = ""


# The machine of workers that run beside the head.
LOCAL = "local"


def worker_devices(workers: Sequence[WorkerMemory]) -> list[Device]:
    """Return the RPC devices in order; llama.cpp counts them through over all endpoints."""
    sharing = {worker.machine: 0 for worker in workers}
    for worker in workers:
        sharing[worker.machine] += 1
    places = [(worker, index) for worker in workers for index in range(len(worker.devices))]
    return [
        _worker_device(worker, index, number=number, sharing=sharing[worker.machine])
        for number, (worker, index) in enumerate(places)
    ]


def _worker_device(worker: WorkerMemory, index: int, *, number: int, sharing: int) -> Device:
    free, total = worker.devices[index]
    return Device(
        name=f"RPC{number}",
        host=worker.name,
        free=free // sharing,
        total=total // sharing,
        gpu=worker.gpu,
        chip=worker.chips[index] if index < len(worker.chips) else "",
        with_head=worker.machine == LOCAL,
        buffer=f"RPC{index}[{worker.endpoint}]" if worker.endpoint else "",
    )


def head_devices(listing: str, *, unified: bool = False) -> list[Device]:
    """Read ``llama-server --list-devices``: the GPUs of the head, none on a CPU build.

    `unified` says that they have no memory apart from the system's.
    """
    found = (_LISTED.match(line) for line in listing.splitlines())
    return [
        Device(
            m["name"],
            "head",
            free=int(m["free"]) * MIB,
            total=int(m["total"]) * MIB,
            chip=m["description"],
            with_head=unified,
        )
        for m in found
        if m and not m["name"].startswith("RPC")
    ]


def head_cpu(facts: HostFacts) -> Device:
    """Return the head's own memory as a device that can also compute."""
    return Device(
        "CPU",
        "head",
        free=facts.memory_available,
        total=facts.memory_total,
        gpu=False,
        with_head=True,
    )


def expected_memory(facts: HostFacts, *, gpu: bool) -> tuple[tuple[int, int], ...]:
    """Return free and total bytes of each device that an engine will find on a host.

    A GPU without memory of its own shares the system's, of which what is available counts.
    """
    system = (facts.memory_available, facts.memory_total)
    if not (gpu and facts.gpus):
        return (system,)
    return tuple(own or system for own in facts.gpu_memory)
