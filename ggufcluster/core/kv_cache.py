"""How many numbers a token leaves in the KV cache of each block, and how large they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ggufcluster.core.gguf import GgufHeader

# Bytes of one element by the name that llama-server takes: a block of 32 values is 34 bytes in
# q8_0, 24 in q5_1, 22 in q5_0, 20 in q4_1, 18 in q4_0 and iq4_nl.
KV_ELEMENT_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
    "iq4_nl": 18 / 32,
}

# One of our patches gives the index keys a type of their own, whatever that of the other keys.
INDEX_TYPE = "f16"


def kv_values(header: GgufHeader, architecture: str, layers: int) -> tuple[int, ...]:
    """Return how many numbers one token adds to each block's keys and values.

    A block whose entry in a per-block list is missing counts with none.
    """
    heads = header.get(f"{architecture}.attention.head_count_kv")
    if heads is None:
        heads = header.get(f"{architecture}.attention.head_count")
    per_layer = heads if isinstance(heads, tuple) else (heads,) * layers
    width = _head_width(header, architecture)
    counts = [_count(value) for value in per_layer[:layers]]
    return tuple(count * width for count in counts + [0] * (layers - len(counts)))


def index_values(
    header: GgufHeader, architecture: str, layers: int, *, indexed: Collection[int | None]
) -> tuple[int, ...]:
    """Return how many numbers one token adds to each block's index keys; `indexed` have some."""
    width = header.optional(f"{architecture}.attention.indexer.key_length")
    return tuple(width if layer in indexed else 0 for layer in range(layers))


def _head_width(header: GgufHeader, architecture: str) -> int:
    heads = header.get(f"{architecture}.attention.head_count")
    most = max(map(_count, heads), default=0) if isinstance(heads, tuple) else _count(heads)
    default = header.number(f"{architecture}.embedding_length") // (most or 1)
    key = header.optional(f"{architecture}.attention.key_length") or default
    value = header.optional(f"{architecture}.attention.value_length") or default
    # Multi-head latent attention keeps no values: they are read from the keys.
    if header.optional(f"{architecture}.attention.key_length_mla"):
        value = 0
    return key + value


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
