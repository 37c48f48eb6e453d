"""Layers on devices."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.memory import DeviceKind, HeadMemory, StageMemory
from ggufcluster.core.placement import Device, Placement, check_count, place
from ggufcluster.core.units import GIB
from ggufcluster.errors import ConfigError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Sequence


NOTHING = HeadMemory(0, 0, 0, 0)


@dataclass(frozen=True)
class Needs:
    """Needs that are made up.

    Attributes:
        costs: Weights of each layer.
        output: The output head.
        kv: Cache of each layer.
        compute: Compute buffer of each device.
        loading: What each device needs besides its weights while they come in.
        own: What the head needs for itself.
    """

    costs: tuple[int, ...]
    output: int = 0
    kv: int = 0
    compute: int = 0
    loading: int = 0
    own: HeadMemory = NOTHING

    def stage(self, first: int, count: int, kind: DeviceKind) -> StageMemory:
        """Return what the layers from `first` on need."""
        head = self.output if first + count == len(self.costs) else 0
        weights = sum(self.costs[first : first + count]) + head
        return StageMemory(weights, self.kv * count, self.compute, loading=self.loading)

    def head(self) -> HeadMemory:
        """Return what the head needs for itself."""
        return self.own


def devices(*rooms: int, with_head: bool = False) -> list[Device]:
    """Make devices of which exactly so many bytes are usable."""
    return [
        Device(f"RPC{n}", f"w{n}", free=room, total=0, with_head=with_head)
        for n, room in enumerate(rooms)
    ]


def put(
    costs: Sequence[int],
    rooms: Sequence[int],
    *,
    output: int = 0,
    kv: int = 0,
    compute: int = 0,
    loading: int = 0,
) -> Placement:
    """Place layers of these weights on devices of these rooms."""
    needs = Needs(tuple(costs), output, kv, compute, loading)
    return place(needs, len(costs), devices(*rooms), name="Tiny")


def counts(placement: Placement) -> list[int]:
    """Return the number of layers of each device."""
    return [share.layers for share in placement.shares]


def test_equal_devices_get_equal_shares() -> None:
    """Layers of one size are spread evenly, in order and without a gap."""
    placement = put([10] * 9, [100, 100, 100])
    assert [(s.first, s.last) for s in placement.shares] == [(0, 2), (3, 5), (6, 8)]
    assert [share.bytes for share in placement.shares] == [30, 30, 30]


def test_weights_are_told_apart_from_the_cache() -> None:
    """What travels to a device is its weights, with the output head on the last; the KV is not."""
    placement = put([10] * 4, [100, 100], output=7, kv=2)
    assert [share.weights for share in placement.shares] == [20, 27]
    assert [share.bytes for share in placement.shares] == [24, 31]


def test_shares_follow_the_room() -> None:
    """A device with three times the room gets three times the layers."""
    assert counts(put([10] * 8, [300, 100])) == [6, 2]


def test_one_device_takes_everything() -> None:
    """With a single device there is nothing to cut, and the output head counts to it."""
    (share,) = put([10] * 3, [40], output=7).shares
    assert (share.first, share.last, share.bytes) == (0, 2, 37)


def test_the_output_head_weighs_on_the_last_device() -> None:
    """A heavy output head moves layers away from the last device."""
    placement = put([10] * 10, [100, 100], output=60)
    assert counts(placement) == [8, 2]
    assert placement.shares[-1].bytes == 80


def test_every_device_gets_a_layer() -> None:
    """Even a device with little room next to a huge one is used."""
    assert counts(put([10] * 4, [1000, 10, 10])) == [2, 1, 1]
    assert counts(put([10] * 3, [10, 10, 10])) == [1, 1, 1]


def test_more_devices_than_layers_are_refused() -> None:
    """The error counts devices and layers and says what to do; as many as layers are fine."""
    with pytest.raises(ConfigError, match="3 devices for the 2 layers of Tiny; name fewer"):
        put([10, 10], [GIB, GIB, GIB])
    check_count("Tiny", 2, 2)


@pytest.mark.parametrize("rooms", [[25, 0], [0], [30, 9], [9, 9, 9]])
def test_too_little_room_is_refused(rooms: list[int]) -> None:
    """A device without room for a single layer, or too little in all, is an error with numbers."""
    with pytest.raises(PlacementError, match="Tiny does not fit") as caught:
        put([10] * 4, rooms)
    assert caught.value.need == 40
    assert caught.value.have == sum(rooms)


def test_a_tight_fit_is_found() -> None:
    """Where even shares would overfill a device, it is filled up instead."""
    assert counts(put([10] * 5, [18, 40])) == [1, 4]


def test_working_memory_counts_on_each_device() -> None:
    """The compute buffer is taken off every device before the layers are spread."""
    assert counts(put([10] * 4, [40, 40], compute=20)) == [2, 2]
    with pytest.raises(PlacementError) as caught:
        put([10] * 4, [40, 40], compute=21)
    assert caught.value.need == 40 + 2 * 21


def test_the_load_counts_where_it_needs_more_than_running() -> None:
    """While weights come in, cache and compute buffer are not there yet: the larger sum counts."""
    assert counts(put([10] * 4, [40, 40], compute=15, loading=20)) == [2, 2]
    with pytest.raises(PlacementError) as caught:
        put([10] * 4, [40, 40], compute=15, loading=21)
    assert caught.value.need == 40 + 2 * 21


def test_the_head_takes_room_where_it_shares_memory() -> None:
    """A device in the head's own memory gets fewer layers; two beside it bear half each."""
    needs = Needs((10,) * 8, own=HeadMemory(embedding=20, inputs=15, outputs=5, loading=0))
    far, near = devices(70), devices(70, with_head=True)
    assert counts(place(needs, 8, [*far, *near], name="Tiny")) == [5, 3]
    both = place(needs, 8, devices(100, 100, with_head=True), name="Tiny")
    assert [share.memory.head for share in both.shares] == [20, 20]


def test_a_head_without_room_for_itself_is_refused() -> None:
    """Where no device shares the head's memory, it must hold embedding and inputs by itself."""
    needs = Needs((10,) * 2, own=HeadMemory(embedding=20, inputs=15, outputs=5, loading=21))
    for free, fits in ((41, True), (40, False)):
        head = Device("CPU", "head", free=free, total=0, gpu=False)
        if fits:
            place(needs, 2, devices(100), name="Tiny", head=head)
            continue
        with pytest.raises(PlacementError, match="head itself holds") as caught:
            place(needs, 2, devices(100), name="Tiny", head=head)
        assert (caught.value.need, caught.value.have) == (41, 40)


def test_a_refusal_names_the_device_when_the_sum_would_do() -> None:
    """If all memory together is enough but no cut fits, the device that is too small is named."""
    with pytest.raises(PlacementError, match=r"RPC1 on w1 would need .* for 2 layers and offers"):
        put([10] * 4, [100, 5])


def test_room_is_kept_free_on_a_device() -> None:
    """A twelfth of the device stays free, at most 9 GiB, and never less than nothing is usable."""
    assert Device("a", "a", free=120 * GIB, total=120 * GIB).usable == 111 * GIB
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
            require_whole(put(costs, rooms), rooms)
        else:
            with pytest.raises(PlacementError):
                put(costs, rooms)
    assert 100 < found < 400


def require_whole(placement: Placement, rooms: list[int]) -> None:
    """Check that the layers follow each other without a gap and that no device is overfilled."""
    first = 0
    for share, room in zip(placement.shares, rooms, strict=True):
        assert share.first == first
        assert share.layers >= 1
        assert share.bytes <= room
        first += share.layers


@pytest.mark.parametrize(
    ("name", "gpu", "kind"),
    [
        ("RPC3", True, DeviceKind.FAR_GPU),
        ("RPC3", False, DeviceKind.FAR_CPU),
        ("CUDA0", True, DeviceKind.HEAD_GPU),
        ("CPU", False, DeviceKind.HEAD_CPU),
    ],
)
def test_a_name_tells_where_a_device_is(name: str, kind: DeviceKind, *, gpu: bool) -> None:
    """llama.cpp's names tell workers' devices from the head's own."""
    assert Device(name, "h", 1, 1, gpu=gpu).kind is kind
