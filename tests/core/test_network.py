"""Shapes of a network from its file's keys."""

from __future__ import annotations

import pytest

from ggufcluster.core.gguf import GgufHeader, Value, ValueType
from ggufcluster.core.network import NetworkShape, read_network


def header(**numbers: int | tuple[int, ...]) -> GgufHeader:
    """Make a header with these keys of an architecture called x."""
    values = {
        f"x.{key.replace('__', '.')}": Value(ValueType.UINT32, value)
        for key, value in numbers.items()
    }
    return GgufHeader(3, values, (), 32, 0, 0)


def shape(**numbers: int | tuple[int, ...]) -> NetworkShape:
    """Read shapes that are there."""
    found = read_network(header(**numbers), "x", vocabulary=100)
    assert found is not None
    return found


def test_what_a_file_leaves_out_follows_from_the_rest() -> None:
    """Head sizes come from the width, key heads from the query heads; no experts, all dense."""
    found = shape(embedding_length=64, attention__head_count=4, block_count=7)
    assert (found.key_size, found.value_size, found.key_heads) == (16, 16, 4)
    assert (found.dense_layers, found.experts, found.vocabulary) == (7, 0, 100)


def test_experts_follow_the_leading_layers() -> None:
    """With experts only the leading layers are dense."""
    found = shape(
        embedding_length=64,
        attention__head_count=4,
        block_count=7,
        expert_count=8,
        expert_used_count=2,
        leading_dense_block_count=2,
        expert_feed_forward_length=32,
    )
    assert (found.dense_layers, found.expert_width) == (2, 32)


def test_counts_for_each_block_are_read_as_their_largest() -> None:
    """A list stands for its largest entry: memory is planned for the worst block."""
    found = shape(embedding_length=64, attention__head_count=(2, 8), block_count=2)
    assert found.query_heads == 8


def test_without_width_heads_or_vocabulary_there_is_no_shape() -> None:
    """A file that lacks them is not guessed at."""
    assert read_network(header(embedding_length=64), "x", vocabulary=9) is None
    assert read_network(header(attention__head_count=4), "x", vocabulary=9) is None
    whole = header(embedding_length=64, attention__head_count=4)
    assert read_network(whole, "x", vocabulary=0) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"attention__key_length": 0},
        {"attention__key_length": -128},
        {"attention__head_count_kv": 0},
        {"attention__indexer__block_size": 0},
        {"expert_count": 8, "expert_used_count": 9},
        {"expert_count": 8},
        {"expert_count": 1 << 31, "expert_used_count": 1 << 31},
        {"feed_forward_length": -1},
    ],
)
def test_absurd_counts_give_no_shape(odd: dict[str, int]) -> None:
    """A file may claim anything; nothing is computed from what no network can have."""
    keys = {"embedding_length": 64, "attention__head_count": 4, "block_count": 2} | odd
    assert read_network(header(**keys), "x", vocabulary=100) is None
