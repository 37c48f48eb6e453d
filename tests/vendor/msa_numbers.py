"""The sequence that the golden vectors of sparse attention are made from.

It is drawn anew wherever it is needed. Every number is a multiple of 1/64 in [-2, 2): exact in
f32, f16 and bf16. A product of two rows of 128 stays below 2^24 of its unit, so scores are exact
in f32 in whatever order they are added, and implementations must agree on the selected blocks to
the last one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

DIM: Final = 128
HEADS: Final = 64
GROUPS: Final = 4
BLOCK: Final = 128
TOP: Final = 16
SEEDS: Final = {"index_key": 1, "index_query": 2, "key": 3, "query": 4, "value": 5}
WIDTHS: Final = {
    "index_key": 1,
    "index_query": GROUPS,
    "key": GROUPS,
    "query": HEADS,
    "value": GROUPS,
}
_STRIDE: Final = 8


def draw(name: str, first: int, count: int) -> Floats:
    """Draw the rows of `count` positions from `first` on.

    Args:
        name: A key of `SEEDS`.
        first: The first position.
        count: How many positions.

    Returns:
        Shape (count, heads or groups, 128).
    """
    shape = (count, WIDTHS[name], DIM)
    row = WIDTHS[name] * DIM
    counters = np.arange(first * row, (first + count) * row, dtype=np.uint64)
    seed = np.uint64(SEEDS[name] << 32)
    top_byte = _splitmix64(counters + seed) >> np.uint64(56)
    rows: Floats = (top_byte.astype(np.float32) - 128) / np.float32(64)
    return rows.reshape(shape)


def sample(outputs: Floats) -> Floats:
    """Keep every eighth element of a head, other ones in the next head.

    Args:
        outputs: Shape (token, head, 128).

    Returns:
        Shape (token, head, 16).
    """
    tokens, heads, _ = outputs.shape
    dims = np.arange(0, DIM, _STRIDE)[None, :] + np.arange(heads)[:, None] % _STRIDE
    token = np.arange(tokens)[:, None, None]
    kept: Floats = outputs[token, np.arange(heads)[None, :, None], dims]
    return kept


def block_scores(index_query: Floats, index_key: Floats, position: int) -> Floats:
    """Score the blocks that a token sees, without a word about which are chosen.

    Args:
        index_query: Shape (group, 128), of one token.
        index_key: Shape (key, 128), with the keys' positions as rows.
        position: The token's.

    Returns:
        Shape (group, block): the largest product of each block.
    """
    products = index_query @ index_key[: position + 1].T
    blocks = math.ceil((position + 1) / BLOCK)
    gap = blocks * BLOCK - products.shape[1]
    padded = np.pad(products, ((0, 0), (0, gap)), constant_values=-np.inf)
    best: Floats = padded.reshape(len(index_query), blocks, BLOCK).max(axis=2)
    return best


def _splitmix64(counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014).
    z = (counters + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
