"""Devices in llama.cpp's order and names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ggufcluster.core.devices import (
    WorkerMemory,
    expected_memory,
    head_cpu,
    head_devices,
    worker_devices,
)
from ggufcluster.core.host import parse_facts
from ggufcluster.core.units import GIB, MIB

SPARK = parse_facts(
    (Path(__file__).parents[1] / "data/probes/facts-dgx-spark.txt").read_text(encoding="utf-8")
)
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


def test_workers_beside_the_head_share_its_memory() -> None:
    """They are told apart, by where they are, from workers with memory of their own."""
    memories = [
        WorkerMemory("local-1", "local", ((8, 9),)),
        WorkerMemory("b", "b", ((8, 9),), chips=("NVIDIA GB10",), endpoint="10.0.0.2:50052"),
    ]
    beside, far = worker_devices(memories)
    assert beside.with_head
    assert not far.with_head
    assert (far.chip, far.buffer) == ("NVIDIA GB10", "RPC0[10.0.0.2:50052]")
    assert beside.buffer == ""


def test_the_second_device_of_a_worker_has_a_buffer_of_its_own() -> None:
    """llama.cpp numbers the buffers of each endpoint from 0."""
    worker = WorkerMemory("b", "b", ((1, 2), (1, 2)), endpoint="10.0.0.2:50052")
    assert [device.buffer for device in worker_devices([worker])] == [
        "RPC0[10.0.0.2:50052]",
        "RPC1[10.0.0.2:50052]",
    ]


def test_a_unified_gpu_shares_the_heads_memory() -> None:
    """On a GB10 what the head needs for itself comes out of the same memory."""
    (own,) = head_devices(LISTING)
    (unified,) = head_devices(LISTING, unified=True)
    assert not own.with_head
    assert unified.with_head
    assert unified.chip == "NVIDIA GB10 (Blackwell)"


def test_a_gpu_without_memory_of_its_own_has_what_is_available() -> None:
    """nvidia-smi tells no memory on a GB10: the system's available memory counts."""
    system = (SPARK.memory_available, SPARK.memory_total)
    assert expected_memory(SPARK, gpu=True) == (system,)
    assert SPARK.unified


def test_a_gpu_with_memory_of_its_own_counts_by_that() -> None:
    """What the driver says is free counts for it, the system's memory for a CPU."""
    facts = replace(SPARK, gpus=("NVIDIA H200",), gpu_memory=((100 * GIB, 140 * GIB),))
    assert expected_memory(facts, gpu=True) == ((100 * GIB, 140 * GIB),)
    assert expected_memory(facts, gpu=False) == ((facts.memory_available, facts.memory_total),)
    assert not facts.unified


def test_the_heads_own_memory_is_a_device_of_last_resort() -> None:
    """It is called CPU, as llama.cpp does, and the head's own part lies in it."""
    cpu = head_cpu(SPARK)
    assert (cpu.name, cpu.gpu, cpu.with_head) == ("CPU", False, True)
    assert (cpu.free, cpu.total) == (SPARK.memory_available, SPARK.memory_total)
