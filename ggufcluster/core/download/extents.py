"""Sets of byte ranges: which bytes of a file are there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Span = tuple[int, int]


class Extents:
    """A set of bytes as ordered, disjoint spans; each from a start up to, not with, an end."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in spans:
            self.add(start, end)

    def __iter__(self) -> Iterator[Span]:
        return zip(self._starts, self._ends, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extents) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Extents({list(self)})"

    def add(self, start: int, end: int) -> None:
        """Add the bytes from `start` up to, not with, `end`."""
        if start >= end:
            return
        # Spans that touch are joined, so that a file that is whole is one span.
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def count(self) -> int:
        """Return how many bytes there are."""
        return sum(self._ends) - sum(self._starts)

    def prefix(self) -> int:
        """Return how many bytes are there without a gap from the file's beginning."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    def gaps(self, size: int) -> list[Span]:
        """Return the spans of a file of `size` bytes that are not there."""
        starts = [0, *self._ends]
        ends = [*self._starts, size]
        return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]

    def copy(self) -> Extents:
        """Return another set of the same bytes."""
        twin = Extents()
        twin._starts, twin._ends = self._starts.copy(), self._ends.copy()
        return twin
