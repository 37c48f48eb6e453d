"""From facts to a launch spec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from ggufcluster.core.model import ModelFacts
from ggufcluster.core.placement import Device
from ggufcluster.core.plan import Plan, largest_context, make_plan
from ggufcluster.core.units import GIB, MIB
from ggufcluster.core.wish import Wish
from ggufcluster.errors import ConfigError, PlacementError
from tests.core.m3_model import m3_facts

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


M3 = m3_facts()
SPARK = 119 * GIB


def sparks(count: int) -> list[Device]:
    """Make so many Sparks; the last one is the head."""
    names = [f"RPC{number}" for number in range(count - 1)] + ["CUDA0"]
    return [
        Device(name, f"spark-{n}", SPARK, SPARK, with_head=name == "CUDA0")
        for n, name in enumerate(names, 1)
    ]


def planned_m3(wish: Wish = WISH, devices: list[Device] | None = None) -> Plan:
    """Plan MiniMax-M3 on three Sparks, or what is given."""
    used = sparks(3) if devices is None else devices
    endpoints = tuple(f"10.20.20.{n}:50052" for n in range(2, len(used) + 1))
    return make_plan(wish, M3, PurePosixPath("/m"), devices=used, endpoints=endpoints, head=HEAD)


HEAD = Device("CPU", "head", SPARK, SPARK, gpu=False, with_head=True)


def full_sparks(count: int) -> list[Device]:
    """Return Sparks on which something else runs."""
    return [replace(device, free=device.free - 14 * GIB) for device in sparks(count)]


def test_the_largest_context_fits_and_the_next_does_not() -> None:
    """`max` takes all there is: one step of the cache more is refused with both numbers."""
    context = planned_m3(replace(WISH, context="max"), full_sparks(3)).spec.context
    assert context % 256 == 0
    assert 131_072 < context < M3.train_context
    assert planned_m3(replace(WISH, context=context), full_sparks(3)).spec.context == context
    with pytest.raises(PlacementError, match=f"{context + 256:,} tokens") as caught:
        planned_m3(replace(WISH, context=context + 256), full_sparks(3))
    assert caught.value.need > 0 < caught.value.have


@pytest.mark.parametrize(("context", "path"), [(2_097_152, "native"), (2_097_408, "generic")])
def test_the_kernels_are_expected_up_to_their_longest_context(context: int, path: str) -> None:
    """Beyond it the engine takes the generic path, whose masks are planned for."""
    model = replace(M3, train_context=1 << 23)
    devices = [replace(device, total=64 << 40, free=64 << 40) for device in sparks(3)]
    endpoints = ("10.20.20.2:50052", "10.20.20.3:50052")
    plan = make_plan(
        replace(WISH, context=context),
        model,
        PurePosixPath("/m"),
        devices=devices,
        endpoints=endpoints,
        head=replace(HEAD, total=64 << 40, free=64 << 40),
    )
    assert plan.needs.workload.path == path


def test_the_largest_context_is_never_more_than_the_model_knows() -> None:
    """With room for more, `max` is what the model was made for."""
    roomy = [replace(device, free=500 * GIB, total=500 * GIB) for device in sparks(3)]
    assert planned_m3(replace(WISH, context="max"), roomy).spec.context == M3.train_context


def test_slots_share_the_room() -> None:
    """Twice the slots leave each about half the context."""
    one, two = (
        planned_m3(replace(WISH, context="max", parallel=number), full_sparks(3)).spec.context
        for number in (1, 2)
    )
    assert one / 2 <= two < one * 0.6


def test_a_smaller_cache_type_gives_more_context() -> None:
    """The table of what would fit grows with every smaller type, and is zero where nothing does."""
    sizes = [
        largest_context(WISH, M3, devices=full_sparks(3), head=HEAD, kv_type=kind)
        for kind in ("f16", "q8_0", "q4_0")
    ]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    assert largest_context(WISH, M3, devices=sparks(1), head=HEAD, kv_type="q4_0") == 0


def test_nothing_is_planned_into_the_headroom() -> None:
    """On every Spark at least 9 GiB stay free whatever fits, the head's own part included."""
    plan = planned_m3(replace(WISH, context="max"))
    assert plan.placement is not None
    for share in plan.placement.shares:
        assert share.device.free - share.memory.total >= 9 * GIB
    assert plan.placement.shares[-1].memory.head > 0


def test_unequal_nodes_get_unequal_shares() -> None:
    """A node with less memory gets fewer layers, down to one, and none is overfilled."""
    small = [replace(sparks(3)[0], free=30 * GIB, total=32 * GIB), *sparks(3)[1:], *sparks(1)]
    devices = [replace(device, name=f"RPC{n}") for n, device in enumerate(small)]
    placement = planned_m3(devices=devices).placement
    assert placement is not None
    counts = [share.layers for share in placement.shares]
    assert sum(counts) == 60
    assert 1 <= counts[0] < min(counts[1:]) / 2


@pytest.mark.parametrize("count", [2, 5, 16])
def test_many_workers_and_a_head_without_gpu(count: int) -> None:
    """Up to sixteen workers share the layers; the head holds embedding and inputs only."""
    devices = [Device(f"RPC{n}", f"w{n}", 120 * GIB, 120 * GIB) for n in range(max(count, 3))]
    endpoints = tuple(f"10.0.0.{n}:1" for n in range(len(devices)))
    plan = make_plan(WISH, M3, PurePosixPath("/m"), devices=devices, endpoints=endpoints, head=HEAD)
    assert plan.placement is not None
    assert sum(part.layers for part in plan.spec.split) == 60
    assert all(share.memory.head == 0 for share in plan.placement.shares)


def test_more_workers_than_llama_cpp_takes_are_refused() -> None:
    """Seventeen are one too many, whatever they offer."""
    endpoints = tuple(f"10.0.0.{n}:1" for n in range(17))
    with pytest.raises(ConfigError, match=r"17 workers; llama\.cpp takes at most 16"):
        make_plan(WISH, M3, PurePosixPath("/m"), devices=BIG, endpoints=endpoints)


def test_a_head_too_small_for_its_own_part_is_refused() -> None:
    """A head without GPU needs room for embedding and inputs: both numbers are told."""
    little = replace(HEAD, free=2 * GIB, total=2 * GIB)
    devices = [Device(f"RPC{n}", f"w{n}", 400 * GIB, 400 * GIB) for n in range(2)]
    with pytest.raises(PlacementError, match="head itself holds") as caught:
        make_plan(
            WISH, M3, PurePosixPath("/m"), devices=devices, endpoints=("a:1", "b:1"), head=little
        )
    assert caught.value.have < 2 * GIB < caught.value.need


def test_a_head_that_computes_alone_is_placed_on_its_cpu() -> None:
    """With its memory known everything goes there, and llama-server gets no split."""
    head = replace(HEAD, free=600 * GIB, total=600 * GIB)
    plan = make_plan(WISH, M3, PurePosixPath("/m"), devices=(), endpoints=(), head=head)
    assert plan.placement is not None
    assert [(share.device.name, share.layers) for share in plan.placement.shares] == [("CPU", 60)]
    assert plan.spec.split == ()
    assert plan.spec.msa == "generic"


@pytest.mark.parametrize(
    ("change", "kv_type", "path"),
    [
        ({}, "q8_0", "native"),
        ({}, "bf16", "native"),
        ({}, "q5_0", "generic"),
        ({"query_heads": 8}, "q8_0", "generic"),
        ({"block": 64}, "q8_0", "generic"),
    ],
)
def test_our_kernels_are_counted_on_where_they_fit(
    change: dict[str, int], kv_type: str, path: str
) -> None:
    """GPUs take the native path for the shapes and types that our kernels are made for."""
    assert M3.network is not None
    model = replace(M3, network=replace(M3.network, **change))
    plan = make_plan(
        replace(WISH, kv_type=kv_type, context=1024),
        model,
        PurePosixPath("/m"),
        devices=sparks(3),
        endpoints=("a:1", "b:1"),
    )
    assert plan.needs.workload.path == path
    assert plan.spec.msa == "auto"
