"""From facts to a launch spec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from ggufcluster.core.model import ModelFacts
from ggufcluster.core.placement import Device
from ggufcluster.core.plan import Plan, make_plan
from ggufcluster.core.units import GIB, MIB
from ggufcluster.core.wish import Wish
from ggufcluster.errors import PlacementError

MODEL = ModelFacts(
    name="Tiny",
    architecture="minimax-m3",
    layers=8,
    layer_bytes=(MIB,) * 8,
    output_bytes=MIB,
    embedding_bytes=MIB,
    train_context=1 << 20,
    kv_values=(64,) * 8,
    template=None,
    has_indexer=True,
)
BIG = [Device("RPC0", "a", 100 * GIB, 120 * GIB), Device("RPC1", "b", 100 * GIB, 120 * GIB)]
SMALL = [replace(device, free=2 * GIB, total=2 * GIB) for device in BIG]
WISH = Wish(workers=("a", "b"))


def planned(
    wish: Wish = WISH, model: ModelFacts = MODEL, devices: list[Device] | None = None
) -> Plan:
    """Plan with two big devices, or those given."""
    return make_plan(
        wish,
        model,
        PurePosixPath("/m.gguf"),
        devices=BIG if devices is None else devices,
        endpoints=("10.20.20.2:50052", "10.20.20.3:50052"),
    )


def test_the_family_fills_in_what_is_not_asked_for() -> None:
    """A MiniMax-M3 gets its makers' sampling, its cache type, its ubatch and its best context."""
    plan = planned()
    spec = plan.spec
    assert (spec.kv_type, spec.ubatch, spec.context) == ("q8_0", 2048, 131_072)
    assert spec.sampling == (("--temp", "1.0"), ("--top-p", "0.95"), ("--top-k", "40"))
    assert [(part.device, part.layers) for part in spec.split] == [("RPC0", 4), ("RPC1", 4)]
    assert plan.sparse


def test_a_wish_goes_before_the_family() -> None:
    """Every value that is asked for is taken as it is."""
    wish = replace(
        WISH,
        context=8192,
        parallel=3,
        kv_type="f16",
        ubatch=64,
        template=Path("/t.jinja"),
        api_key_file=Path("/keys"),
        host="10.20.20.1",
        port=9000,
        extra=("--threads", "4"),
    )
    spec = planned(wish).spec
    assert (spec.context, spec.parallel, spec.kv_type, spec.ubatch) == (8192, 3, "f16", 64)
    assert (spec.template, spec.api_key_file) == (PurePosixPath("/t.jinja"), PurePosixPath("/keys"))
    assert (spec.host, spec.port, spec.extra) == ("10.20.20.1", 9000, ("--threads", "4"))


def test_an_ubatch_is_never_larger_than_the_context() -> None:
    """A small context cuts the ubatch."""
    assert planned(replace(WISH, context=512)).spec.ubatch == 512


def test_little_room_gives_a_smaller_context() -> None:
    """When the largest context does not fit, the next one is planned."""
    assert planned(devices=SMALL).spec.context == 65_536


def test_a_context_that_was_asked_for_is_not_made_smaller() -> None:
    """What does not fit as asked for is an error, not something else."""
    with pytest.raises(PlacementError, match="131,072"):
        planned(replace(WISH, context=131_072), devices=SMALL)


def test_without_devices_the_head_computes_alone() -> None:
    """There is no split then, and the context is the smallest usual one the model allows."""
    plan = planned(model=replace(MODEL, train_context=4096), devices=[])
    assert plan.placement is None
    assert plan.spec.split == ()
    assert plan.spec.context == 4096


@pytest.mark.parametrize(
    "model",
    [replace(MODEL, has_indexer=False), replace(MODEL, architecture="llama")],
    ids=["no indexer", "other family"],
)
def test_sparse_attention_is_expected_only_where_it_can_be(model: ModelFacts) -> None:
    """A model without indexer tensors or of another family runs dense, and that is right."""
    assert not planned(model=model).sparse


@pytest.mark.parametrize(
    ("wanted", "gpu", "path"),
    [
        ("auto", True, "auto"),
        ("auto", False, "generic"),
        ("native", False, "native"),
        ("dense", True, "dense"),
    ],
)
def test_the_path_of_sparse_attention_fits_the_devices(
    wanted: str, path: str, *, gpu: bool
) -> None:
    """CPUs get the generic path unless another is asked for; GPUs decide by themselves."""
    devices = [replace(device, gpu=gpu) for device in BIG]
    plan = planned(replace(WISH, msa=wanted), devices=devices)
    assert plan.spec.msa == path
    assert plan.sparse is (wanted != "dense")


def test_a_model_without_sparse_attention_gets_no_path() -> None:
    """The option is only given to a model that has an indexer."""
    assert planned(model=replace(MODEL, has_indexer=False)).spec.msa is None
