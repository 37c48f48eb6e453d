"""What `up` says of its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from ggufcluster.core.placement import Device
from ggufcluster.core.plan import Plan, make_plan
from ggufcluster.core.server_log import BufferUse, ServerReport, parse_server_log
from ggufcluster.core.units import GIB, MIB
from ggufcluster.core.wish import Wish
from ggufcluster.workflows.events import Finished, Note, Warned
from ggufcluster.workflows.plan_notes import compare, describe
from tests.core.m3_model import m3_facts

MODEL = m3_facts(layers=4)
FAR = Device("RPC0", "b", 400 * GIB, 400 * GIB, buffer="RPC0[10.20.20.2:50052]")


def planned(context: int = 4096, architecture: str = "minimax-m3") -> Plan:
    """Plan on one worker."""
    return make_plan(
        Wish(workers=("b",), context=context),
        replace(MODEL, architecture=architecture),
        PurePosixPath("/m"),
        devices=[FAR],
        endpoints=("10.20.20.2:50052",),
    )


def report(plan: Plan, *, compute: float = 1.0) -> ServerReport:
    """Report what was planned, the compute buffer times a factor."""
    assert plan.placement is not None
    memory = plan.placement.shares[0].memory
    sizes = (memory.weights, memory.kv_cache, memory.compute * compute, 0)
    use = BufferUse(*(round(size / MIB, 2) for size in sizes))
    return replace(parse_server_log([]), buffers={FAR.buffer: use})


def test_a_plan_is_told_with_what_each_device_holds() -> None:
    """Layers, memory and room of each device, then the whole in one line."""
    events = list(describe(planned()))
    notes = [event.text for event in events if isinstance(event, Note)]
    (end,) = [event for event in events if isinstance(event, Finished)]
    assert len(notes) == 1
    assert notes[0].startswith("RPC0 (b): layers 0 to 3, ")
    assert notes[0].endswith(" of 391 GiB usable")
    assert "context 4,096 x 1, KV cache q8_0" in end.detail


def test_a_context_that_was_cut_is_told_aloud() -> None:
    """More than the model was made for is a warning."""
    (warning,) = [e.text for e in describe(planned(1 << 21)) if isinstance(e, Warned)]
    assert warning.startswith("context 1,048,576 instead of 2,097,152")


def test_what_came_out_as_planned_is_one_note() -> None:
    """Nobody wants a line for each buffer that is right."""
    plan = planned()
    (note,) = list(compare(plan, report(plan)))
    assert isinstance(note, Note)
    assert "as planned (within 0.0 %)" in note.text


@pytest.mark.parametrize("factor", [1.06, 0.94])
def test_more_than_five_percent_off_is_told_aloud(factor: float) -> None:
    """Too much and too little both mean that the plan does not know this engine."""
    plan = planned()
    (warning,) = list(compare(plan, report(plan, compute=factor)))
    assert isinstance(warning, Warned)
    assert warning.text.startswith("RPC0 (b): compute takes")


def test_an_estimate_may_be_too_high() -> None:
    """Other families have a margin on purpose: only more than planned is told."""
    plan = planned(architecture="other")
    assert list(compare(plan, report(plan, compute=0.8))) == []
    (warning,) = list(compare(plan, report(plan, compute=1.2)))
    assert isinstance(warning, Warned)


def test_a_log_without_buffers_says_nothing() -> None:
    """Nothing to compare with is no disagreement."""
    assert list(compare(planned(), parse_server_log([]))) == []
