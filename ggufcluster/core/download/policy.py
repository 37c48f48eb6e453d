"""How patient a download is, and the one decision about what to do when an answer is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ggufcluster.core.units import KIB, MIB

_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """Numbers that govern a download.

    Attributes:
        connections: How many parts come at the same time.
        part_bytes: Most bytes of a request; None: by what is to come.
        least_split: What is left of a part is shared if each half has at least this many bytes.
        attempts: Failures in a row, without a byte, after which a part gives up.
        silence: Seconds without a byte after which a part connects anew.
        least_rate: Bytes a second below which a part connects anew, unless all are slow.
        rate_window: Seconds over which the rate is measured.
        pause: Scale of all waits between attempts.
        longest_wait: Seconds; a server that asks to wait longer is given up.
    """

    connections: int = 16
    part_bytes: int | None = None
    least_split: int = MIB
    attempts: int = 10
    silence: float = 20.0
    least_rate: int = 32 * KIB
    rate_window: float = 15.0
    pause: float = 1.0
    longest_wait: float = 3600.0

    def is_stalled(self, rate: float, *, mean: float) -> bool:
        """Tell whether a part is too slow; `mean` is the rate of all parts now at work."""
        return rate < min(self.least_rate, mean / 8)


class Remedy(Enum):
    """What to do after an answer that was wrong."""

    REPEAT = "repeat"
    WAIT = "wait"
    RENEW = "renew"
    RESTART = "restart"
    GIVE_UP = "give up"


def remedy(status: int | None, *, wait: float | None, attempts: int, policy: FetchPolicy) -> Remedy:
    """Decide what to do.

    Args:
        status: HTTP status; None if the connection broke.
        wait: Seconds that the server asks to wait.
        attempts: Failures of this part in a row.
        policy: How patient to be.
    """
    if attempts >= policy.attempts or (wait or 0.0) > policy.longest_wait:
        return Remedy.GIVE_UP
    if status == 429 or (status in _PASSING and wait is not None):
        return Remedy.WAIT
    if status is None or status in _PASSING or status >= 500:
        return Remedy.REPEAT
    if status == 416:
        return Remedy.RESTART
    return Remedy.RENEW
