"""Known models."""

from __future__ import annotations

import pytest

from ggufcluster.core.download.listing import Listing, PublishedFile
from ggufcluster.core.download.presets import PRESETS, Preset, live, spare_bytes
from ggufcluster.core.units import GIB


def test_presets_say_what_was_reported() -> None:
    """The widely used file has no indexer; the others were converted with it."""
    dense = [preset.repository for preset in PRESETS if not preset.has_indexer]
    assert dense == ["unsloth/MiniMax-M3-GGUF"]
    assert not any(preset.is_live for preset in PRESETS)


def test_the_hub_tells_every_size() -> None:
    """Each quantisation of the repository becomes a model with the size of all its shards."""
    files = (
        PublishedFile("m-Q8_0.gguf", 50, None),
        PublishedFile("m-Q4_0-00001-of-00002.gguf", 10, None),
        PublishedFile("m-Q4_0-00002-of-00002.gguf", 11, None),
        PublishedFile("mmproj-F16.gguf", 7, None),
    )
    preset = Preset("a/b", None, has_indexer=True, size=None)
    found = live(preset, Listing("a/b", "main", "c", files))
    assert [(m.quant, m.size, m.is_live) for m in found] == [("Q4_0", 21, True), ("Q8_0", 50, True)]


@pytest.mark.parametrize(
    ("size", "nodes", "spare"),
    [
        (100, [110, 110], 120),
        (194, [110], -84),
        (10, [0, 0], -10),
        (None, [110], None),
    ],
)
def test_weights_are_held_against_all_nodes(
    size: int | None, nodes: list[int], spare: int | None
) -> None:
    """What is spare is the sum of what the nodes can hold, less the weights, if they are known."""
    found = spare_bytes(None if size is None else size * GIB, [node * GIB for node in nodes])
    assert found == (None if spare is None else spare * GIB)
