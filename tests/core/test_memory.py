"""What layers need on a device."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ggufcluster.core.gguf import read_header
from ggufcluster.core.memory import DeviceKind, HeadMemory, Requirements, StageMemory, Workload
from ggufcluster.core.model import ModelFacts, read_facts
from ggufcluster.core.toy import random_model
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.core.units import GIB, MIB
from tests.core.m3_model import m3_facts

RUNS = Path(__file__).parents[2] / "docs" / "measurements" / "2026-11-30-plan" / "cpu-toys.json"
LOAD = Workload(context=131_072, parallel=1, ubatch=2048, kv_type="q8_0", path="native")


class Bytes:
    """A byte source over bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""
        taken, self._data = self._data[:size], self._data[size:]
        return taken


def toy_facts(shape: dict[str, Any], vocabulary: int) -> ModelFacts:
    """Return the facts of a toy as they are read from its file."""
    data = random_model("", ToyShape(**shape), vocabulary_size=vocabulary).to_bytes()
    return read_facts([read_header(Bytes(data))])


def small_runs() -> list[Any]:
    """Return the recorded runs of the smallest toy, by what tells them apart."""
    runs = json.loads(RUNS.read_text(encoding="utf-8"))
    return [
        pytest.param(run, id=f"{number}-{run['path']}")
        for number, run in enumerate(runs)
        if not run["shape"]
    ]


@pytest.fixture(scope="module")
def toy() -> ModelFacts:
    """The smallest toy's facts, from its own header."""
    return toy_facts({}, 512)


@pytest.mark.parametrize("run", small_runs())
def test_every_buffer_is_that_of_a_real_start(run: dict[str, Any], toy: ModelFacts) -> None:
    """From the header alone: weights, caches, compute and output buffers within 5 %."""
    load = Workload(run["context"], run["parallel"], run["ubatch"], run["kv_type"], run["path"])
    split = run["split"] or [toy.layers]
    needs = Requirements(toy, load, pipelined=len(split) > 1).at_start()
    kind = DeviceKind.FAR_CPU if run["split"] else DeviceKind.HEAD_CPU
    starts = [sum(split[:index]) for index in range(len(split))]
    stages = [needs.stage(a, n, kind) for a, n in zip(starts, split, strict=True)]
    head, reported = needs.head(), run["reported_mib"]

    weights = [stage.weights for stage in stages]
    planned = [*weights, head.embedding] if run["split"] else [weights[0] + head.embedding]
    told = [reported["model"][name] for name in reported["model"] if name != "CPU"]
    told.append(reported["model"]["CPU"])

    assert [size / MIB for size in planned] == pytest.approx(told, rel=0.05, abs=0.01)
    caches = [stage.kv_cache / MIB for stage in stages]
    assert caches == pytest.approx(list(reported["kv_cache"].values()), rel=0.05, abs=0.01)
    compute = [stage.compute / MIB for stage in stages]
    compute += [head.inputs / MIB] if run["split"] else []
    assert compute == pytest.approx(list(reported["compute"].values()), rel=0.05, abs=0.01)
    assert head.outputs / MIB == pytest.approx(reported["output"]["CPU"], abs=0.01)


def test_a_few_layers_tell_for_many() -> None:
    """Each further layer on a device changes the compute buffer by the same, mostly by nothing."""
    for path in ("native", "generic", "dense"):
        needs = Requirements(m3_facts(), replace(LOAD, path=path), pipelined=True)
        sizes = [needs.stage(10, n, DeviceKind.FAR_GPU).compute for n in (7, 17, 27)]
        assert sizes[2] - sizes[1] == sizes[1] - sizes[0]
        assert (sizes[1] > sizes[0]) is (path == "generic")


def test_the_generic_path_needs_masks_for_every_layer() -> None:
    """Over several devices each layer has copies of its own: 128k tokens of M3 fit nowhere so."""
    needs = Requirements(m3_facts(), replace(LOAD, path="generic"), pipelined=True)
    assert needs.stage(30, 30, DeviceKind.FAR_GPU).compute > 200 * GIB
    native = Requirements(m3_facts(), LOAD, pipelined=True)
    assert native.stage(30, 30, DeviceKind.FAR_GPU).compute < GIB


def test_at_the_start_fewer_positions_are_reserved() -> None:
    """The generic path grows with what is in the cache; the plan counts it full."""
    needs = Requirements(m3_facts(layers=8), replace(LOAD, path="generic"), pipelined=True)
    full, start = (one.stage(0, 8, DeviceKind.FAR_GPU).compute for one in (needs, needs.at_start()))
    assert start < full
    assert needs.at_start().head().inputs < needs.head().inputs


def test_index_keys_count_in_their_own_type_for_sparse_layers_only() -> None:
    """The three dense layers of M3 have none; q8_0 takes 34 bytes for 32 numbers."""
    facts = m3_facts()
    sizes = {
        kind: Requirements(facts, replace(LOAD, index_type=kind), pipelined=True)
        for kind in ("f16", "q8_0")
    }
    main = 131_072 * 4 * 256 * 34 // 32
    for kind, index in (("f16", 131_072 * 256), ("q8_0", 131_072 * 136)):
        assert sizes[kind].stage(0, 3, DeviceKind.FAR_GPU).kv_cache == 3 * main
        assert sizes[kind].stage(3, 2, DeviceKind.FAR_GPU).kv_cache == 2 * (main + index)


def test_slots_have_caches_of_their_own_padded_to_256_cells() -> None:
    """A context that is no multiple of 256 takes the next one, in every slot."""
    assert replace(LOAD, context=2000, parallel=3).cells == 2048
    assert replace(LOAD, context=512, parallel=4).cells == 512


def test_a_quantised_cache_costs_a_gpu_copies_in_f16() -> None:
    """Flash attention turns keys and values of the whole cache into f16."""
    facts = m3_facts(layers=4)
    needs = Requirements(facts, replace(LOAD, context=1 << 20, path="dense"), pipelined=True)
    cpu = needs.stage(0, 4, DeviceKind.FAR_CPU).compute
    gpu = needs.stage(0, 4, DeviceKind.FAR_GPU).compute
    copies = (1 << 20) * 4 * 256 * 2
    assert 0.8 * copies < gpu - cpu <= copies


def test_the_total_is_the_larger_of_load_and_run() -> None:
    """While weights come in there is neither cache nor compute buffer."""
    assert StageMemory(100, 20, 10, head=5, loading=0).total == 135
    assert StageMemory(100, 20, 10, head=5, loading=50).total == 150
    assert HeadMemory(10, 5, 1, loading=20).total == 30
    assert HeadMemory(10, 5, 1, loading=2).total == HeadMemory(10, 5, 1, loading=2).running == 16


def test_other_families_are_estimated_with_a_margin() -> None:
    """The same shapes under another name get a quarter on top; without shapes a rule of thumb."""
    facts = m3_facts(layers=8, indexer=False)
    load = replace(LOAD, path="dense")
    other = Requirements(replace(facts, architecture="other"), load, pipelined=True)
    known = Requirements(facts, load, pipelined=True)
    blind = Requirements(replace(facts, network=None), load, pipelined=True)
    stage = (0, 8, DeviceKind.FAR_GPU)
    assert known.exact
    assert not other.exact
    assert not blind.exact
    assert other.stage(*stage).compute == known.stage(*stage).compute * 5 // 4
    assert blind.stage(*stage).compute > GIB
