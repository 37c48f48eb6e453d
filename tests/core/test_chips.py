"""Peaks of GPUs by name."""

from __future__ import annotations

import pytest

from ggufcluster.core.chips import chip_of


@pytest.mark.parametrize(
    ("name", "bandwidth"),
    [
        ("NVIDIA GB10 (Blackwell)", 273e9),
        ("NVIDIA H100 PCIe", 2000e9),
        ("NVIDIA H100 80GB HBM3", 3350e9),
    ],
)
def test_a_chip_is_found_in_the_drivers_name(name: str, bandwidth: float) -> None:
    """The more telling name wins where one holds another."""
    chip = chip_of(name)
    assert chip is not None
    assert chip.bandwidth == bandwidth


@pytest.mark.parametrize("name", ["", "AMD EPYC", "NVIDIA Somethingelse"])
def test_an_unknown_chip_has_no_figures(name: str) -> None:
    """Nothing is guessed."""
    assert chip_of(name) is None
