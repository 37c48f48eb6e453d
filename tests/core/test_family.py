"""Defaults of model families."""

from __future__ import annotations

from ggufcluster.core.family import MINIMAX_M3, OTHER, family_of
from ggufcluster.core.kv_cache import KV_ELEMENT_BYTES


def test_the_family_follows_the_architecture() -> None:
    """MiniMax-M3 has defaults of its own, every other architecture the general ones."""
    assert family_of("minimax-m3") is MINIMAX_M3
    assert family_of("llama") is OTHER


def test_contexts_are_tried_from_the_largest() -> None:
    """Contexts descend, and the KV cache type is one whose size is known."""
    for one in (MINIMAX_M3, OTHER):
        assert list(one.contexts) == sorted(one.contexts, reverse=True)
        assert one.kv_type in KV_ELEMENT_BYTES
