"""Sizes and times for people."""

from __future__ import annotations

import pytest

from ggufcluster.core.units import GIB, KIB, MIB, seconds_text, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (12 * KIB, "12.0 KiB"),
        (123 * MIB, "123 MiB"),
        (194 * GIB, "194 GiB"),
        (2048 * GIB, "2.00 TiB"),
    ],
)
def test_sizes_have_three_digits_and_a_binary_unit(size: int, text: str) -> None:
    """A number of bytes is shown with three digits in the unit that fits."""
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (0.44, "0.4 s"),
        (12.4, "12 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7800, "2 h 10 min"),
    ],
)
def test_durations_carry_over(seconds: float, text: str) -> None:
    """Rounding never gives 60 seconds or 60 minutes."""
    assert seconds_text(seconds) == text
