"""What is asked of `up`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ggufcluster.core.wish import Wish, differences

WISH = Wish(workers=("10.20.20.2",), model="/m.gguf", template=Path("/t.jinja"))


def test_passing_settings_are_no_part_of_the_shape() -> None:
    """What only concerns the start does not make it another cluster."""
    other = replace(WISH, drop_caches=True, tool_check=False, ready_seconds=1.0, stall_seconds=2.0)
    assert other.shape() == WISH.shape()
    assert differences(WISH.shape(), other.shape()) == ()


def test_differences_are_named_with_both_values() -> None:
    """Each setting that differs is named with its first and second value."""
    other = replace(WISH, context=4096, template=None, workers=("a", "local:2"))
    assert differences(WISH.shape(), other.shape()) == (
        "context unset instead of 4096",
        "template /t.jinja instead of unset",
        "workers 10.20.20.2 instead of a local:2",
    )


def test_a_setting_of_another_version_counts_as_missing() -> None:
    """Shapes with different settings can still be compared."""
    assert differences('{"a": 1}', '{"b": 2}') == ("a 1 instead of unset", "b unset instead of 2")
