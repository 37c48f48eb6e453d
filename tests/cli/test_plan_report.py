"""How a plan looks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from ggufcluster.cli import plan_report
from ggufcluster.cli.output import Output
from ggufcluster.core.expectation import expect
from ggufcluster.core.placement import Device
from ggufcluster.core.plan import make_plan
from ggufcluster.core.units import GIB
from ggufcluster.core.wish import Wish
from ggufcluster.workflows.planning import Outlook
from tests.core.m3_model import m3_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

FAR = Device("RPC0", "10.20.20.2", 119 * GIB, 119 * GIB, chip="NVIDIA GB10")
OWN = replace(FAR, name="CUDA0", host="head", with_head=True)
HEAD = Device("CPU", "head", 119 * GIB, 119 * GIB, gpu=False, with_head=True)
LARGEST = {"q8_0": 131_072, "f16": 65_536, "q4_0": 0}


def found(
    devices: Sequence[Device] = (FAR, OWN),
    *,
    link: float = 25e9,
    context: int | None = None,
    parallel: int = 1,
) -> Outlook:
    """Plan half of M3 on these devices."""
    plan = make_plan(
        Wish(workers=("b",), context=context, parallel=parallel),
        m3_facts(layers=30),
        PurePosixPath("/m"),
        devices=devices,
        endpoints=("10.20.20.2:50052",),
        head=HEAD,
    )
    return Outlook(plan, (), expect(plan, links={FAR.host: link}), LARGEST)


def shown(one: Outlook, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines that are printed for people."""
    plan_report.show(Output(), one, as_json=False)
    return capsys.readouterr().out.splitlines()


def data(one: Outlook, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what is printed for scripts."""
    plan_report.show(Output(as_json=True), one, as_json=True)
    return json.loads(capsys.readouterr().out)


def test_a_plan_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Every line of a plan for people fits a usual terminal."""
    assert max(map(len, shown(found(), capsys))) <= 80


def test_slots_are_counted_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """One slot is one slot, and of several each has the context."""
    assert "context       4,096 tokens in 1 slot" in shown(found(context=4096), capsys)
    several = shown(found(context=4096, parallel=3), capsys)
    assert "context       4,096 tokens in each of 3 slots" in several


def test_each_device_has_a_row_with_need_and_room(capsys: pytest.CaptureFixture[str]) -> None:
    """Layers, the parts of the memory, their sum and what is usable stand side by side."""
    lines = shown(found(), capsys)
    (far,) = [line for line in lines if line.startswith("RPC0")]
    words = far.split()
    assert words[1] == "10.20.20.2"
    assert words[2].startswith("0-")
    assert words[-2:] == ["110", "G"]
    assert any(line.startswith("CUDA0") for line in lines)


def test_a_head_apart_has_a_row_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no device shares its memory, the head's embedding and inputs are shown beside."""
    (head,) = [line for line in shown(found((FAR,)), capsys) if line.startswith("-  ")]
    assert head.split()[1] == "head"
    assert not [line for line in shown(found(), capsys) if line.startswith("-  ")]


def test_bounds_are_called_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody takes them for promises, and what binds is named."""
    lines = shown(found(), capsys)
    assert "Bounds for one request: real runs stay below" in lines
    (answer,) = [line for line in lines if line.startswith("answering, at the start")]
    assert " < " in answer
    assert "memory of " in answer
    assert "unknown" not in " ".join(lines)


def test_what_is_not_known_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Without figures of a chip there is no number, and what is missing is named once."""
    lines = shown(found([replace(FAR, chip="")], link=0.0), capsys)
    (answer,) = [line for line in lines if line.startswith("answering, at the start")]
    assert answer.split()[-2:] == ["unknown", "-"]
    (lacking,) = [line for line in lines if "want of figures" in line]
    assert lacking.endswith(": processor of 10.20.20.2; link to 10.20.20.2")


def test_a_bound_that_leaves_something_out_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Hosts without figures are named once for all bounds, and what is known still binds."""
    odd = [replace(FAR, name=f"RPC{n}", host=f"10.20.20.{n + 2}", chip="") for n in range(3)]
    lines = shown(found([*odd, OWN]), capsys)
    (answer,) = [line for line in lines if line.startswith("answering, at the start")]
    assert answer.endswith("memory of CUDA0 on head (not all is known)")
    assert " ".join(lines).count("processor of 10.20.20.2, 10.20.20.3, 10.20.20.4; ") == 1
    assert max(map(len, lines)) <= 80


def test_the_reasons_and_other_caches_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Why each cut is where it is, and what else would fit, down to what would not."""
    text = " ".join(shown(found(), capsys))
    assert "131,072 with q8_0, 65,536 with f16, none with q4_0" in text
    assert "starts on head (CUDA0) because" in text


def test_scripts_get_bytes_and_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes are plain bytes that add up, and the split is what llama-server is given."""
    # So much context that running takes more than loading, whose buffers no column shows.
    told = data(found(context=262_144), capsys)
    first, last = told["devices"]
    assert told["device_order"] == ["RPC0", "CUDA0"]
    counts = [last["first_layer"], 30 - last["first_layer"] + 1]
    assert told["tensor_split"] == ",".join(map(str, counts))
    parts = ("weights", "kv_cache", "compute", "head")
    assert last["total"] == sum(last[part] for part in parts)
    assert first["usable"] + first["headroom"] == first["free"]
    assert told["bounds"]["decode"]["tokens_per_second"] > 0
    assert told["largest_context"] == LARGEST
    assert told["checked_against_engine"] is True
    assert told["why"]
