"""Sets of byte ranges."""

from __future__ import annotations

import random

import pytest

from ggufcluster.core.download.extents import Extents


@pytest.mark.parametrize(
    ("spans", "kept"),
    [
        ([], []),
        ([(5, 5)], []),
        ([(0, 10), (20, 30)], [(0, 10), (20, 30)]),
        ([(20, 30), (0, 10), (10, 20)], [(0, 30)]),
        ([(0, 10), (5, 15)], [(0, 15)]),
        ([(0, 100), (10, 20)], [(0, 100)]),
        ([(0, 1), (2, 3), (4, 5), (0, 5)], [(0, 5)]),
    ],
)
def test_spans_that_touch_are_one(
    spans: list[tuple[int, int]], kept: list[tuple[int, int]]
) -> None:
    """Spans are kept in order; those that touch or overlap are joined, empty ones dropped."""
    assert list(Extents(spans)) == kept


def test_it_is_the_set_of_its_bytes() -> None:
    """Whatever is added in whatever order, count, prefix and gaps are those of a set of bytes."""
    chance = random.Random(7)
    for _ in range(200):
        extents, reference = Extents(), set[int]()
        for _ in range(chance.randrange(12)):
            start = chance.randrange(60)
            end = start + chance.randrange(20)
            extents.add(start, end)
            reference |= set(range(start, end))
        missing = {byte for span in extents.gaps(80) for byte in range(*span)}
        assert extents.count() == len(reference)
        assert missing == set(range(80)) - reference
        assert extents.prefix() == next(n for n in range(90) if n not in reference)
        assert extents.copy() == extents


def test_a_copy_is_another_set() -> None:
    """What is added to a copy does not appear in its original."""
    extents = Extents([(0, 1)])
    extents.copy().add(5, 6)
    assert list(extents) == [(0, 1)]
