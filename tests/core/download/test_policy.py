"""What to do when an answer is wrong, and when a part is too slow."""

from __future__ import annotations

import pytest

from ggufcluster.core.download.policy import FetchPolicy, Remedy, remedy


@pytest.mark.parametrize(
    ("status", "wait", "attempts", "wanted"),
    [
        (None, None, 1, Remedy.REPEAT),
        (500, None, 1, Remedy.REPEAT),
        (503, None, 9, Remedy.REPEAT),
        (599, None, 1, Remedy.REPEAT),
        (503, 5.0, 1, Remedy.WAIT),
        (429, None, 1, Remedy.WAIT),
        (429, 60.0, 1, Remedy.WAIT),
        (401, None, 1, Remedy.RENEW),
        (403, None, 1, Remedy.RENEW),
        (404, None, 1, Remedy.RENEW),
        (416, None, 1, Remedy.RESTART),
        (None, None, 10, Remedy.GIVE_UP),
        (429, 1.0, 10, Remedy.GIVE_UP),
        (429, 3600.0, 1, Remedy.WAIT),
        (429, 3601.0, 1, Remedy.GIVE_UP),
    ],
)
def test_remedies(status: int | None, wait: float | None, attempts: int, wanted: Remedy) -> None:
    """What passes is repeated, a limit waited for, a refusal met with a new address."""
    assert remedy(status, wait=wait, attempts=attempts, policy=FetchPolicy()) is wanted


@pytest.mark.parametrize(
    ("rate", "mean", "stalled"),
    [(0, 1e6, True), (1e3, 1e6, True), (1e5, 1e6, False), (1e3, 2e3, False), (0, 0, False)],
)
def test_a_part_is_slow_only_beside_others(rate: float, mean: float, *, stalled: bool) -> None:
    """A part below the least rate connects anew, unless the whole link is as slow."""
    assert FetchPolicy(least_rate=32_000).is_stalled(rate, mean=mean) is stalled
