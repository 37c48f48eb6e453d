"""Name the devices of a cluster the way llama.cpp will, in pipeline order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.placement import Device
from ggufcluster.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """

    name: str
    machine: str
    devices: tuple[tuple[int, int], ...]


def worker_devices(workers: Sequence[WorkerMemory]) -> list[Device]:
    """Return the RPC devices in order; llama.cpp counts them through over all endpoints."""
    sharing = {worker.machine: 0 for worker in workers}
    for worker in workers:
        sharing[worker.machine] += 1
    pairs = [(worker, memory) for worker in workers for memory in worker.devices]
    return [
        Device(
            name=f"RPC{number}",
            host=worker.name,
            free=free // sharing[worker.machine],
            total=total // sharing[worker.machine],
        )
        for number, (worker, (free, total)) in enumerate(pairs)
    ]


def head_devices(listing: str) -> list[Device]:
    """Read ``llama-server --list-devices``: the GPUs of the head, none on a CPU build."""
    found = (_LISTED.match(line) for line in listing.splitlines())
    return [
        Device(m["name"], "head", free=int(m["free"]) * MIB, total=int(m["total"]) * MIB)
        for m in found
        if m and not m["name"].startswith("RPC")
    ]
