"""Who fetches which bytes: parts in order, files in turn, the rest shared at the end."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ggufcluster.core.download.extents import Span

_LEAST_PART = 64 * MIB
_MOST_PART = 256 * MIB
# Each connection fetches several parts, so that none has much to do when others are done.
_PARTS_EACH = 4
# Towards the end parts become smaller, down to this: those that are large and end together leave
# much to be hashed after the last byte, as a file can only be hashed in order.
_LAST_PART = 8 * MIB
_SHARES_EACH = 2


def part_size(missing: int, connections: int) -> int:
    """Return how many bytes one request asks for, when `missing` bytes are to come.

    Large enough that setting up a connection does not matter, small enough that what arrives out
    of order is still in memory when it is hashed.
    """
    wanted = missing // (connections * _PARTS_EACH)
    return max(_LEAST_PART, min(_MOST_PART, wanted))


@dataclass(slots=True, eq=False)
class Claim:
    """Bytes of one file that one connection fetches: from `position` up to, not with, `end`.

    Attributes:
        file: Number of the file.
        position: Next byte; moves on as bytes arrive.
        end: Moves back when another connection takes over the rest.
        attempts: Failures since the last byte came.
    """

    file: int
    position: int
    end: int
    attempts: int = 0

    @property
    def left(self) -> int:
        """How many bytes are to come."""
        return max(0, self.end - self.position)


class Schedule:
    """Hands out claims; not safe between threads by itself.

    Args:
        gaps: For each file, the spans that are missing.
        part_bytes: Most bytes of a claim.
        least_split: A claim with at least twice as many bytes left may be shared.
        connections: How many fetch at the same time.
    """

    def __init__(
        self,
        gaps: Iterable[Iterable[Span]],
        *,
        part_bytes: int,
        least_split: int,
        connections: int = 1,
    ) -> None:
        self._waiting = [deque(spans) for spans in gaps]
        self._part_bytes = part_bytes
        self._at_once = connections
        self._least_split = least_split
        self.active: list[Claim] = []

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to fetch or being fetched."""
        return not self.active and not any(self._waiting)

    def claim(self) -> Claim | None:
        """Hand out the next bytes, or half of the largest claim at work; None if too few are left.

        Files take turns: the one that the fewest connections work on is served first, and each is
        served in order, so that it can be hashed while it grows.
        """
        files = [number for number, spans in enumerate(self._waiting) if spans]
        if not files:
            return self._share()
        file = min(files, key=self._connections)
        size = self._next_size()
        start, end = self._waiting[file].popleft()
        cut = min(end, start + size)
        if cut < end:
            self._waiting[file].appendleft((cut, end))
        return self._begin(Claim(file, start, cut))

    def finish(self, claim: Claim) -> None:
        """End a claim that has nothing left."""
        self.active.remove(claim)

    def abandon(self, file: int) -> None:
        """Hand out nothing more of a file, and let those at work on it have nothing left."""
        for claim in self.active:
            if claim.file == file:
                claim.end = claim.position
        self._waiting[file].clear()

    def restore(self, file: int, size: int) -> None:
        """Hand out all of a file again."""
        self._waiting[file] = deque([(0, size)] if size else [])

    def _next_size(self) -> int:
        waiting = sum(end - start for spans in self._waiting for start, end in spans)
        fair = waiting // (self._at_once * _SHARES_EACH)
        return min(self._part_bytes, max(_LAST_PART, fair - fair % MIB))

    def _share(self) -> Claim | None:
        biggest = max(self.active, key=lambda claim: claim.left, default=None)
        if biggest is None or biggest.left < 2 * self._least_split:
            return None
        middle = biggest.position + biggest.left // 2
        taken = Claim(biggest.file, middle, biggest.end)
        biggest.end = middle
        return self._begin(taken)

    def _begin(self, claim: Claim) -> Claim:
        self.active.append(claim)
        return claim

    def _connections(self, file: int) -> int:
        return sum(claim.file == file for claim in self.active)
