"""The shapes of a network, as far as its memory depends on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ggufcluster.core.gguf import GgufHeader

_USUAL_BLOCK = 128
_USUAL_BLOCKS = 16
_MOST_EXPERTS_USED = 1024


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Widths and counts of a mixture-of-experts transformer with grouped queries.

    Attributes:
        width: Values of one token between layers.
        vocabulary: Number of vocabulary entries.
        query_heads: Query heads of a layer.
        key_heads: Key and value heads of a layer.
        key_size: Values of one key head.
        value_size: Values of one value head.
        dense_layers: Leading layers with full attention and a plain feed-forward part.
        dense_width: Inner width of that part.
        experts: Experts of a layer.
        experts_used: Experts that one token goes through.
        expert_width: Inner width of one expert.
        shared_experts: Experts that every token goes through.
        index_heads: Heads of the indexer of sparse attention; 0 without one.
        index_size: Values of one index key.
        block: Keys in a block of sparse attention.
        blocks: Blocks that one query attends to.
    """

    width: int
    vocabulary: int
    query_heads: int
    key_heads: int
    key_size: int
    value_size: int
    dense_layers: int
    dense_width: int
    experts: int = 0
    experts_used: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    index_heads: int = 0
    index_size: int = 0
    block: int = _USUAL_BLOCK
    blocks: int = _USUAL_BLOCKS


def read_network(header: GgufHeader, architecture: str, *, vocabulary: int) -> NetworkShape | None:
    """Read the shapes from the first shard's keys; None where one is missing or absurd.

    `vocabulary` is the number of rows of the output head. Counts that differ from block to block
    are read as their largest.
    """

    def count(key: str, default: int = 0) -> int:
        value = header.get(f"{architecture}.{key}")
        if isinstance(value, tuple):
            return max((v for v in value if isinstance(v, int)), default=default)
        return value if isinstance(value, int) else default

    width, query_heads = count("embedding_length"), count("attention.head_count")
    if min(width, query_heads, vocabulary) <= 0:
        return None
    experts = count("expert_count")
    inner = count("feed_forward_length")
    shape = NetworkShape(
        width=width,
        vocabulary=vocabulary,
        query_heads=query_heads,
        key_heads=count("attention.head_count_kv", query_heads),
        key_size=count("attention.key_length", width // query_heads),
        value_size=count("attention.value_length", width // query_heads),
        # Without experts every layer is one of those that lead.
        dense_layers=count("leading_dense_block_count") if experts else count("block_count"),
        dense_width=inner,
        experts=experts,
        experts_used=count("expert_used_count"),
        expert_width=count("expert_feed_forward_length", inner),
        shared_experts=count("expert_shared_count"),
        index_heads=count("attention.indexer.head_count"),
        index_size=count("attention.indexer.key_length"),
        block=count("attention.indexer.block_size", _USUAL_BLOCK),
        blocks=count("attention.indexer.top_k", _USUAL_BLOCKS),
    )
    return shape if _is_sane(shape) else None


def _is_sane(shape: NetworkShape) -> bool:
    """Say whether the counts are such as a network can have: files may claim anything."""
    positive = (shape.key_heads, shape.key_size, shape.value_size, shape.block, shape.blocks)
    counts: tuple[int, ...] = (
        shape.dense_layers,
        shape.dense_width,
        shape.experts,
        shape.experts_used,
    )
    counts += (shape.expert_width, shape.shared_experts, shape.index_heads, shape.index_size)
    return (
        min(positive) > 0
        and min(counts) >= 0
        and shape.experts_used <= min(shape.experts, _MOST_EXPERTS_USED)
        and (shape.experts == 0 or shape.experts_used > 0)
    )
