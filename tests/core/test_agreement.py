"""Plans against reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from ggufcluster.core.agreement import Agreement, agreement
from ggufcluster.core.placement import Device
from ggufcluster.core.plan import Plan, make_plan
from ggufcluster.core.server_log import BufferUse, parse_server_log
from ggufcluster.core.units import GIB, MIB
from ggufcluster.core.wish import Wish
from tests.core.m3_model import m3_facts

EMPTY = parse_server_log([])
FAR = Device("RPC0", "b", 400 * GIB, 400 * GIB, buffer="RPC0[10.20.20.2:50052]")
OWN = Device("CUDA0", "head", 400 * GIB, 400 * GIB)


def planned(*devices: Device) -> Plan:
    """Plan four layers of M3 on these devices."""
    return make_plan(
        Wish(workers=("b",), context=4096),
        m3_facts(layers=4),
        PurePosixPath("/m"),
        devices=devices,
        endpoints=("10.20.20.2:50052",),
        head=Device("CPU", "head", 400 * GIB, 400 * GIB, gpu=False, with_head=True),
    )


def test_buffers_are_found_by_their_names() -> None:
    """A worker's go by endpoint, the head's GPU by name, and the rest is the head's own."""
    use = BufferUse(1.0, 2.0, 3.0, 4.0)
    names = ("RPC0[10.20.20.2:50052]", "CUDA0", "CPU", "CUDA_Host", "RPC0[elsewhere:1]")
    report = replace(EMPTY, buffers=dict.fromkeys(names, use))
    found = agreement(planned(FAR, OWN), report)
    places = [(one.device, one.part, one.reported // MIB) for one in found]
    assert places == [
        *[("RPC0", "weights", 1), ("RPC0", "kv_cache", 2), ("RPC0", "compute", 3)],
        *[("CUDA0", "weights", 1), ("CUDA0", "kv_cache", 2), ("CUDA0", "compute", 3)],
        *[("CPU", "weights", 2), ("CPU", "compute", 6), ("CPU", "outputs", 8)],
    ]


def test_what_was_planned_is_what_the_start_reserves() -> None:
    """Weights, cache and compute of the plan stand beside the report."""
    plan = planned(FAR, OWN)
    assert plan.placement is not None
    share = plan.placement.shares[0]
    use = {FAR.buffer: BufferUse(0.0, 0.0, 0.0, 0.0)}
    weights, cache, compute = agreement(plan, replace(EMPTY, buffers=use))
    assert (weights.planned, cache.planned) == (share.memory.weights, share.memory.kv_cache)
    assert compute.planned == share.memory.compute


def test_the_head_alone_counts_its_embedding_with_the_weights() -> None:
    """On the CPU everything lies in one kind of buffer."""
    plan = planned()
    use = {"CPU": BufferUse(1.0, 1.0, 1.0, 1.0)}
    found = agreement(plan, replace(EMPTY, buffers=use))
    assert [one.part for one in found] == ["weights", "kv_cache", "compute"]
    assert found[0].planned == plan.needs.model.weight_bytes


def test_a_device_without_report_says_nothing() -> None:
    """A log without the lines is no disagreement."""
    assert agreement(planned(FAR, OWN), EMPTY) == ()


@pytest.mark.parametrize(
    ("planned_bytes", "reported", "deviation"),
    [
        (100 * MIB, 100 * MIB, 0.0),
        (100 * MIB, 110 * MIB, (10 - 0.02) / 110),
        (110 * MIB, 100 * MIB, (10 - 0.02) / 110),
        (round(0.01 * MIB), 0, 0.0),
        (0, 0, 0.0),
    ],
)
def test_rounding_is_no_deviation(planned_bytes: int, reported: int, deviation: float) -> None:
    """Hundredths of a MiB are lost in the report and do not count."""
    one = Agreement("RPC0", "b", "compute", planned_bytes, reported)
    assert one.deviation == pytest.approx(deviation, abs=1e-9)
