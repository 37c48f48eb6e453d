"""Who fetches which bytes."""

from __future__ import annotations

import random

import pytest

from ggufcluster.core.download.extents import Extents
from ggufcluster.core.download.schedule import Schedule, part_size
from ggufcluster.core.units import GIB, MIB


def test_files_take_turns_and_each_goes_in_order() -> None:
    """Connections spread over the files; the parts of each come from its beginning."""
    schedule = Schedule([[(0, 30)], [(0, 30)]], part_bytes=10, least_split=100)
    claims = [schedule.claim() for _ in range(6)]
    assert [(c.file, c.position, c.end) for c in claims if c] == [
        *((0, 0, 10), (1, 0, 10), (0, 10, 20), (1, 10, 20), (0, 20, 30), (1, 20, 30)),
    ]
    assert schedule.claim() is None


def test_parts_become_smaller_towards_the_end() -> None:
    """Of what waits a connection takes its share at most, so that all end with little unhashed."""
    schedule = Schedule(
        [[(0, GIB)], [(0, GIB)]], part_bytes=64 * MIB, least_split=MIB, connections=4
    )
    sizes = list[int]()
    while sum(sizes) < 2 * GIB:
        claim = schedule.claim()
        assert claim
        sizes.append(claim.left)
        schedule.finish(claim)
    assert sizes[0] == 64 * MIB
    assert sizes == sorted(sizes, reverse=True)
    assert set(sizes[-8:-1]) == {8 * MIB}
    assert len(sizes) < 2 * (2 * GIB // (64 * MIB))


def test_the_rest_is_shared() -> None:
    """With nothing waiting, the largest claim gives away its second half, if it is worth it."""
    schedule = Schedule([[(0, 100)]], part_bytes=100, least_split=20)
    first = schedule.claim()
    assert first
    first.position = 20
    second = schedule.claim()
    assert second
    assert (first.end, second.position, second.end) == (60, 60, 100)
    third = schedule.claim()
    assert third
    assert third.left == 20
    assert schedule.claim() is not None
    assert schedule.claim() is None


def test_an_abandoned_file_is_left_and_may_come_back() -> None:
    """Those at work on it have nothing left; later all of it is handed out again."""
    schedule = Schedule([[(0, 10)], [(0, 50)]], part_bytes=10, least_split=100)
    claims = [schedule.claim() for _ in range(3)]
    schedule.abandon(1)
    assert [claim.left for claim in claims if claim] == [10, 0, 0]
    for claim in claims:
        assert claim
        schedule.finish(claim)
    assert schedule.is_done
    schedule.restore(1, 50)
    again = schedule.claim()
    assert again
    assert (again.file, again.position, again.end) == (1, 0, 10)


def test_every_byte_is_handed_out_once() -> None:
    """However connections come and go, each missing byte is fetched exactly once."""
    chance = random.Random(3)
    for _ in range(100):
        gaps = [[(0, 97)], [(5, 40), (60, 61)], []]
        schedule = Schedule(gaps, part_bytes=chance.randrange(1, 40), least_split=4)
        fetched = [list[int]() for _ in gaps]
        while not schedule.is_done:
            if claim := schedule.claim():
                claim.attempts = 0
            claim = chance.choice(schedule.active)
            count = min(claim.left, chance.randrange(1, 9))
            fetched[claim.file] += range(claim.position, claim.position + count)
            claim.position += count
            if not claim.left:
                schedule.finish(claim)
        for spans, order in zip(gaps, fetched, strict=True):
            assert len(order) == len(set(order)) == Extents(spans).count()


@pytest.mark.parametrize(
    ("missing", "connections", "size"),
    [(1000, 16, 64 * MIB), (194 * GIB, 16, 256 * MIB), (8 * GIB, 16, 128 * MIB)],
)
def test_part_sizes(missing: int, connections: int, size: int) -> None:
    """Parts grow with what is to come, within limits."""
    assert part_size(missing, connections) == size
