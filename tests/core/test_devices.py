"""Devices in llama.cpp's order and names."""

from __future__ import annotations

from ggufcluster.core.devices import WorkerMemory, head_devices, worker_devices
from ggufcluster.core.units import GIB, MIB

LISTING = """\
Available devices:
  CUDA0: NVIDIA GB10 (Blackwell) (124546 MiB, 121000 MiB free)
  RPC0: 10.20.20.2:50052 (1000 MiB, 900 MiB free)
  CPU: AMD (x) (100 MiB, 90 MiB free)
"""


def test_rpc_devices_are_counted_through_over_all_workers() -> None:
    """A worker with two devices takes two numbers, and the next worker goes on from there."""
    memories = [
        WorkerMemory("a", "a", ((10, 20), (30, 40))),
        WorkerMemory("b", "b", ((50, 60),)),
    ]
    devices = worker_devices(memories)
    assert [(d.name, d.host, d.free, d.total) for d in devices] == [
        ("RPC0", "a", 10, 20),
        ("RPC1", "a", 30, 40),
        ("RPC2", "b", 50, 60),
    ]


def test_workers_on_one_machine_share_its_memory() -> None:
    """Each of two workers on a machine counts half of what it reports."""
    both = [WorkerMemory(name, "local", ((8 * GIB, 10 * GIB),)) for name in ("local-1", "local-2")]
    assert [device.free for device in worker_devices(both)] == [4 * GIB, 4 * GIB]


def test_the_head_offers_its_gpus_only() -> None:
    """Of llama-server's list, CPUs and RPC devices are left out; sizes are MiB."""
    (device,) = head_devices(LISTING)
    assert (device.name, device.host) == ("CUDA0", "head")
    assert (device.total, device.free) == (124546 * MIB, 121000 * MIB)


def test_a_cpu_build_has_no_devices() -> None:
    """A list without entries is no error."""
    assert head_devices("Available devices:\n  (none)\n") == []
