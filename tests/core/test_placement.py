"""Layers on devices."""

from __future__ import annotations

import random
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.model import ModelFacts
from ggufcluster.core.placement import Device, Placement, check_count, place
from ggufcluster.core.units import GIB
from ggufcluster.errors import ConfigError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Sequence


def model(costs: Sequence[int], *, output: int = 0, kv: int = 0, train: int = 1000) -> ModelFacts:
    """Make a model of layers with these weights, and so many KV values a token in each."""
    return ModelFacts(
        name="Tiny",
        architecture="x",
        layers=len(costs),
        layer_bytes=tuple(costs),
        output_bytes=output,
        embedding_bytes=10**6,
        train_context=train,
        kv_values=(kv,) * len(costs),
        template=None,
        has_indexer=False,
    )


def devices(*rooms: int) -> list[Device]:
    """Make devices of which exactly so many bytes are usable."""
    return [Device(f"RPC{n}", f"w{n}", free=room, total=0) for n, room in enumerate(rooms)]


def put(
    facts: ModelFacts,
    rooms: Sequence[int],
    *,
    contexts: Sequence[int] = (1,),
    parallel: int = 1,
    compute: int = 0,
) -> Placement:
    """Place a model on devices of these rooms."""
    return place(
        facts,
        devices(*rooms),
        contexts=contexts,
        kv_type="f16",
        parallel=parallel,
        compute_bytes=lambda tokens: compute * tokens,
    )


def counts(placement: Placement) -> list[int]:
    """Return the number of layers of each device."""
    return [share.layers for share in placement.shares]


def test_equal_devices_get_equal_shares() -> None:
    """Layers of one size are spread evenly, in order and without a gap."""
    placement = put(model([10] * 9), [100, 100, 100])
    assert [(s.first, s.last) for s in placement.shares] == [(0, 2), (3, 5), (6, 8)]
    assert [share.bytes for share in placement.shares] == [30, 30, 30]


def test_weights_are_told_apart_from_the_cache() -> None:
    """What travels to a device is its weights, with the output head on the last; the KV is not."""
    placement = put(model([10] * 4, output=7, kv=2), [100, 100])
    assert [share.weights for share in placement.shares] == [20, 27]
    assert [share.bytes for share in placement.shares] == [28, 35]


def test_shares_follow_the_room() -> None:
    """A device with three times the room gets three times the layers."""
    assert counts(put(model([10] * 8), [300, 100])) == [6, 2]


def test_one_device_takes_everything() -> None:
    """With a single device there is nothing to cut, and the output head counts to it."""
    (share,) = put(model([10] * 3, output=7), [40]).shares
    assert (share.first, share.last, share.bytes) == (0, 2, 37)


def test_the_output_head_weighs_on_the_last_device() -> None:
    """A heavy output head moves layers away from the last device."""
    placement = put(model([10] * 10, output=60), [100, 100])
    assert counts(placement) == [7, 3]
    assert placement.shares[-1].bytes == 90


def test_every_device_gets_a_layer() -> None:
    """Even a device with little room next to a huge one is used."""
    assert counts(put(model([10] * 4), [1000, 10, 10])) == [2, 1, 1]
    assert counts(put(model([10] * 3), [10, 10, 10])) == [1, 1, 1]


def test_more_devices_than_layers_are_refused() -> None:
    """The error counts devices and layers and says what to do; as many as layers are fine."""
    with pytest.raises(ConfigError, match="3 devices for the 2 layers of Tiny; name fewer"):
        put(model([10, 10]), [GIB, GIB, GIB])
    check_count(model([10, 10]), 2)


@pytest.mark.parametrize("rooms", [[25, 0], [0], [30, 9], [9, 9, 9]])
def test_too_little_room_is_refused(rooms: list[int]) -> None:
    """A device without room for a single layer, or too little in all, is an error with numbers."""
    with pytest.raises(PlacementError, match="Tiny does not fit") as caught:
        put(model([10] * 4), rooms)
    assert caught.value.need == 40
    assert caught.value.have == sum(rooms)


def test_a_tight_fit_is_found() -> None:
    """Where even shares would overfill a device, it is filled up instead."""
    assert counts(put(model([10] * 5), [18, 40])) == [1, 4]


def test_the_first_context_that_fits_is_taken() -> None:
    """A smaller context is tried when the KV cache of a bigger one has no room."""
    facts = model([10] * 2, kv=1)
    assert put(facts, [100, 100], contexts=(100, 40, 10)).context == 40
    assert put(facts, [100, 100], contexts=(100, 40, 10), parallel=2).context == 10


def test_the_context_is_cut_to_what_the_model_was_made_for() -> None:
    """No context is longer than the one that the model was trained with."""
    assert put(model([10], train=64), [100], contexts=(512, 256)).context == 64


def test_working_memory_counts_on_each_device() -> None:
    """The compute buffer is taken off every device before the layers are spread."""
    facts = model([10] * 4)
    assert counts(put(facts, [40, 40], compute=20)) == [2, 2]
    with pytest.raises(PlacementError) as caught:
        put(facts, [40, 40], compute=21)
    assert caught.value.need == 40 + 2 * 21


def test_room_is_kept_free_on_a_device() -> None:
    """A twelfth of the device stays free, at most 8 GiB, and never less than nothing is usable."""
    assert Device("a", "a", free=120 * GIB, total=120 * GIB).usable == 112 * GIB
    assert Device("a", "a", free=12 * GIB, total=12 * GIB).usable == 11 * GIB
    assert Device("a", "a", free=GIB, total=24 * GIB).usable == 0


def fits(costs: list[int], rooms: list[int]) -> bool:
    """Try every way to cut the layers."""
    inner = combinations(range(1, len(costs)), len(rooms) - 1)
    ways = ([0, *cuts, len(costs)] for cuts in inner)
    return any(
        all(sum(costs[a:b]) <= room for a, b, room in zip(way, way[1:], rooms, strict=False))
        for way in ways
    )


def test_it_fits_exactly_if_any_cut_fits() -> None:
    """Over random sizes, a placement is found if and only if some cut fits, and it fits itself."""
    chance = random.Random(1)
    found = 0
    for _ in range(500):
        costs = [chance.randint(5, 15) for _ in range(chance.randint(1, 8))]
        number = chance.randint(1, min(4, len(costs)))
        fair = sum(costs) / number
        rooms = [max(1, round(fair * chance.uniform(0.6, 1.6))) for _ in range(number)]
        if fits(costs, rooms):
            found += 1
            require_whole(put(model(costs), rooms), rooms)
        else:
            with pytest.raises(PlacementError):
                put(model(costs), rooms)
    assert 100 < found < 400


def require_whole(placement: Placement, rooms: list[int]) -> None:
    """Check that the layers follow each other without a gap and that no device is overfilled."""
    first = 0
    for share, room in zip(placement.shares, rooms, strict=True):
        assert share.first == first
        assert share.layers >= 1
        assert share.bytes <= room
        first += share.layers
