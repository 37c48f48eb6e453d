"""Random weights."""

from __future__ import annotations

import struct

import pytest

from ggufcluster.core.ggml_types import TensorType, tensor_bytes
from ggufcluster.core.toy_weights import Weights


@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.F16, TensorType.Q8_0])
def test_same_seed_same_bytes(kind: TensorType) -> None:
    """A seed fixes the weights, and another seed gives others."""
    first, again, other = (Weights(seed).uniform(64, kind, reach=1.0) for seed in (5, 5, 6))
    assert first == again != other
    assert len(first) == tensor_bytes((64,), kind)


@pytest.mark.parametrize(("kind", "code"), [(TensorType.F32, "f"), (TensorType.F16, "e")])
def test_floats_fill_their_range(kind: TensorType, code: str) -> None:
    """Weights spread evenly over the whole range and stay inside it."""
    data = Weights(1).uniform(4096, kind, reach=2.0, mean=3.0)
    numbers = struct.unpack(f"<4096{code}", data)
    assert 1.0 <= min(numbers) < 1.1
    assert 4.9 < max(numbers) <= 5.0
    assert abs(sum(numbers) / 4096 - 3.0) < 0.1


def test_q8_0_blocks_hold_a_scale_and_32_numbers() -> None:
    """Each Q8_0 block scales its numbers so that the largest stays within reach."""
    data = Weights(1).uniform(64, TensorType.Q8_0, reach=0.5)
    scale, *numbers = struct.unpack("<e32b", data[:34])
    assert abs(scale - 0.5 / 127) < 1e-5
    assert min(numbers) >= -127
    assert data[34:36] == data[:2]


def test_other_types_are_refused() -> None:
    """Random weights of a type that is not supported are an error."""
    with pytest.raises(ValueError, match="Q4_K"):
        Weights(1).uniform(256, TensorType.Q4_K, reach=1.0)
