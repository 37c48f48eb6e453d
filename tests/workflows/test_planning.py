"""Planning for hosts as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.build_id import Backend
from ggufcluster.core.devices import WorkerMemory, head_cpu, worker_devices
from ggufcluster.core.plan import make_plan
from ggufcluster.core.toy import random_model
from ggufcluster.core.wish import Wish
from ggufcluster.errors import (
    ConfigError,
    HostUnreachableError,
    ModelMissingError,
    PlacementError,
    WorkerAddressError,
)
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.planning import Outlook, outlook
from tests.workflows.fakes import World, facts

if TYPE_CHECKING:
    from pathlib import Path

SPARK_GPU = {"gpu": "NVIDIA GB10, [N/A], [N/A]"}
DISCRETE = {"gpu": "NVIDIA H200, 143771, 1000"}
LINKS = {"links": "10.20.20.1 200000"}


@pytest.fixture(scope="module")
def model_bytes() -> bytes:
    """A toy in MiniMax-M3's architecture."""
    return random_model("").to_bytes()


@dataclass
class Case:
    """Hosts and a wish."""

    world: World
    wish: Wish

    def look(self, backend: Backend | None = None) -> Outlook:
        """Plan for the hosts."""
        return drain(outlook(self.world.seams(), self.wish, backend=backend))


@pytest.fixture
def case(tmp_path: Path, model_bytes: bytes) -> Case:
    """Two workers beside a head, and a toy model."""
    path = tmp_path / "toy.gguf"
    path.write_bytes(model_bytes)
    return Case(World(tmp_path), Wish(workers=("10.20.20.2", "10.20.20.3"), model=str(path)))


def test_a_plan_needs_nothing_but_a_look(case: Case) -> None:
    """Devices, endpoints and memory follow from the hosts' facts; nothing is started there."""
    found = case.look()
    assert found.plan.placement is not None
    shares = found.plan.placement.shares
    assert [(s.device.name, s.device.host) for s in shares] == [
        ("RPC0", "10.20.20.2"),
        ("RPC1", "10.20.20.3"),
    ]
    assert sum(share.layers for share in shares) == 8
    assert shares[0].device.free == 121000000 * 1024
    assert found.plan.spec.endpoints == ("10.20.20.2:50052", "10.20.20.3:50052")
    assert case.world.alive() == []


def test_unified_memory_counts_by_what_is_available(case: Case) -> None:
    """Where nvidia-smi tells no memory, MemAvailable is planned with, on the head as well."""
    for host in case.world.everywhere():
        host.facts = facts(host.name, changes=SPARK_GPU)
    plan = case.look().plan
    assert [(d.name, d.chip, d.free) for d in plan.devices] == [
        ("RPC0", "NVIDIA GB10", 121000000 * 1024),
        ("RPC1", "NVIDIA GB10", 121000000 * 1024),
        ("CUDA0", "NVIDIA GB10", 121000000 * 1024),
    ]
    assert plan.devices[-1].with_head


def test_a_gpu_of_its_own_counts_by_the_driver(case: Case) -> None:
    """Total less used, in MiB; the head's own part then lies in the system's memory."""
    case.world.head.facts = facts("head", changes=DISCRETE)
    plan = case.look().plan
    own = plan.devices[-1]
    assert (own.name, own.free, own.total) == ("CUDA0", 142771 << 20, 143771 << 20)
    assert not own.with_head


def test_a_cpu_backend_leaves_gpus_alone(case: Case) -> None:
    """Asked for the CPU, workers offer their memory and the head nothing."""
    for host in case.world.everywhere():
        host.facts = facts(host.name, changes=SPARK_GPU)
    plan = case.look(Backend.CPU).plan
    assert [device.name for device in plan.devices] == ["RPC0", "RPC1"]
    assert not any(device.gpu for device in plan.devices)


def test_workers_beside_the_head_share_its_memory(case: Case) -> None:
    """Two local workers have half each, and bear the head's own part."""
    case.wish = replace(case.wish, workers=("local:2",))
    plan = case.look().plan
    assert plan.placement is not None
    assert [share.device.free for share in plan.placement.shares] == [121000000 * 512] * 2
    assert all(share.memory.head > 0 for share in plan.placement.shares)


def test_the_head_alone_is_planned_for(case: Case) -> None:
    """Without workers everything goes to the head's CPU, or to its GPU."""
    case.wish = replace(case.wish, workers=())
    assert [device.name for device in case.look().plan.devices] == ["CPU"]
    case.world.head.facts = facts("head", changes=SPARK_GPU)
    assert [device.name for device in case.look().plan.devices] == ["CUDA0"]


def test_the_link_is_that_of_the_slower_port(case: Case) -> None:
    """Speeds of both ends are looked up by address; unknown ones bound nothing."""
    case.world.head.facts = facts("head", changes=LINKS)
    slow = {"links": "10.20.20.2 1000"}
    case.world.hosts["10.20.20.2"].facts = facts("w", changes=slow)
    links = {worker.name: worker.link for worker in case.look().workers}
    assert links == {"10.20.20.2": 1e9 / 8, "10.20.20.3": 200e9 / 8}


def test_other_caches_are_tried(case: Case) -> None:
    """The largest context is told for each usual type of the cache."""
    found = case.look()
    assert set(found.largest) == {"f16", "q8_0", "q4_0"}
    assert set(found.largest.values()) == {8192}


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(case: Case) -> None:
    """What is needed and what is there are both told, before anything is started."""
    little = {"memory": "MemTotal: 20000 kB\nMemAvailable: 9000 kB"}
    for host in case.world.hosts.values():
        host.facts = facts(host.name, changes=little)
    with pytest.raises(PlacementError, match="does not fit") as caught:
        case.look()
    assert caught.value.need > caught.value.have > 0
    assert case.world.alive() == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model": "/nowhere.gguf"}, ModelMissingError),
        ({"workers": ("10.20.20.9",)}, HostUnreachableError),
        ({"workers": ("local:9",)}, ConfigError),
        ({"workers": ("::",)}, WorkerAddressError),
        ({"workers": ("local", "local")}, WorkerAddressError),
        ({"workers": ("10.20.20.2", "10.20.20.2:22")}, WorkerAddressError),
    ],
)
def test_what_stops_up_stops_a_plan(
    case: Case, change: dict[str, object], error: type[Exception]
) -> None:
    """What `up` refuses of model and workers before it starts anything, a plan refuses, too."""
    case.wish = replace(case.wish, **change)  # type: ignore[arg-type]
    with pytest.raises(error):
        case.look()


def test_one_machine_under_two_names_is_no_two_workers(case: Case) -> None:
    """Its memory must not count twice in a plan."""
    case.world.hosts["10.20.20.3"].peer_address = "10.20.20.2"
    with pytest.raises(WorkerAddressError, match=r"is the same machine as 10\.20\.20\.2"):
        case.look()


def test_up_and_plan_agree(case: Case) -> None:
    """For the same memory the plan of facts is the plan of reports."""
    seen = case.look().plan
    memory = (121000000 * 1024, 125829120 * 1024)
    names = ("10.20.20.2", "10.20.20.3")
    reported = worker_devices([WorkerMemory(n, n, (memory,), gpu=False) for n in names])
    head = head_cpu(survey(case.world.head).facts)
    asked = make_plan(
        case.wish,
        seen.needs.model,
        seen.spec.model,
        devices=reported,
        endpoints=seen.spec.endpoints,
        head=head,
    )
    assert asked.spec == seen.spec
