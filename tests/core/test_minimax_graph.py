"""Compute buffers against what real starts reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ggufcluster.core.graph_memory import buffer_bytes
from ggufcluster.core.minimax_graph import Batch, Stage, input_bytes, stage_graph
from ggufcluster.core.network import NetworkShape
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.core.units import MIB

RUNS = Path(__file__).parents[2] / "docs" / "measurements" / "2026-11-30-plan" / "cpu-toys.json"
# Reports have two digits after the point; a few odd bytes of alignment may turn the last one.
ROUNDING = 0.01


def network(shape: ToyShape, vocabulary: int) -> NetworkShape:
    """Say of a toy what its file would say."""
    return NetworkShape(
        width=shape.width,
        vocabulary=vocabulary,
        query_heads=shape.query_heads,
        key_heads=shape.key_value_heads,
        key_size=shape.head_size,
        value_size=shape.head_size,
        dense_layers=shape.dense_layers,
        dense_width=shape.dense_width,
        experts=shape.experts,
        experts_used=shape.experts_used,
        expert_width=shape.expert_width,
        shared_experts=1,
        index_heads=shape.key_value_heads,
        index_size=shape.head_size,
        block=shape.block_size,
        blocks=shape.selected_blocks,
    )


def batch(run: dict[str, Any], tokens: int) -> Batch:
    """Describe the reservation that llama.cpp makes for a run, of so many tokens."""
    parallel = run["parallel"]
    return Batch(
        tokens=-(-tokens // parallel) * parallel,
        streams=parallel,
        cells=-(-run["context"] // 256) * 256,
        positions=256,
        outputs=parallel,
        path=run["path"],
        rotated=run["kv_type"] != "f16",
        copies=4 if len(run["split"]) > 1 else 1,
        local=not run["split"],
    )


def stages(run: dict[str, Any], shape: NetworkShape, layers: int) -> list[Stage]:
    """Return the stages of a split."""
    counts = run["split"] or [layers]
    found, first = [], 0
    for number, count in enumerate(counts, 1):
        dense = max(0, min(first + count, shape.dense_layers) - first)
        here = first <= shape.dense_layers < first + count
        found.append(Stage(dense, count - dense, number == len(counts), here))
        first += count
    return found


def runs() -> list[Any]:
    """Return every recorded run with a readable name."""
    recorded = json.loads(RUNS.read_text(encoding="utf-8"))
    return [pytest.param(run, id=f"{n}-{run['path']}") for n, run in enumerate(recorded)]


@pytest.mark.parametrize("run", runs())
def test_the_compute_buffers_are_those_of_real_starts(run: dict[str, Any]) -> None:
    """For every path, split, cache type and size the prediction is what the engine reported."""
    toy = ToyShape(**run["shape"])
    shape = network(toy, run["vocabulary"])
    prompt = batch(run, min(run["context"] * run["parallel"], run["ubatch"]))
    token = batch(run, run["parallel"])
    predicted = [
        max(buffer_bytes(stage_graph(shape, one, stage), alignment=32) for one in (prompt, token))
        for stage in stages(run, shape, toy.layers)
    ]
    if run["split"]:
        predicted.append(input_bytes(shape, prompt))

    reported = list(run["reported_mib"]["compute"].values())

    assert [size / MIB for size in predicted] == pytest.approx(reported, abs=ROUNDING)


def test_the_record_covers_what_the_model_tells_apart() -> None:
    """Every path, cache type, number of devices and number of slots is among the runs."""
    recorded = json.loads(RUNS.read_text(encoding="utf-8"))
    seen = {(key, str(run[key])) for run in recorded for key in ("path", "kv_type", "parallel")}
    assert {str(len(run["split"])) for run in recorded} == {"0", "1", "2", "3", "4"}
    assert {("path", path) for path in ("native", "generic", "dense")} <= seen
    assert {("kv_type", kind) for kind in ("f16", "q8_0", "q4_0")} <= seen
    assert {("parallel", str(number)) for number in (1, 2, 3, 4)} <= seen
