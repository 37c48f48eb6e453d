"""Bytes of tensors."""

from __future__ import annotations

import pytest

from ggufcluster.core.ggml_types import LAYOUTS, TensorType, tensor_bytes


def test_every_type_has_a_layout() -> None:
    """Each known ggml type has a block size, so any tensor's bytes can be counted."""
    assert set(LAYOUTS) == set(TensorType)


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        (TensorType.F32, 32),
        (TensorType.BF16, 16),
        (TensorType.Q8_0, 8.5),
        (TensorType.Q6_K, 6.5625),
        (TensorType.Q4_K, 4.5),
        (TensorType.IQ4_XS, 4.25),
        (TensorType.MXFP4, 4.25),
        (TensorType.NVFP4, 4.5),
        (TensorType.IQ3_XXS, 3.0625),
        (TensorType.IQ2_XXS, 2.0625),
        (TensorType.IQ1_S, 1.5625),
    ],
)
def test_bits_per_weight_are_the_published_ones(kind: TensorType, bits: float) -> None:
    """A tensor takes the bits per weight that are published for its type."""
    assert tensor_bytes((1024, 3), kind) * 8 == 1024 * 3 * bits


def test_partial_blocks_are_refused() -> None:
    """A row that does not fill whole blocks cannot be stored."""
    with pytest.raises(ValueError, match="rows of 100 do not fill Q4_K blocks of 256"):
        tensor_bytes((100, 256), TensorType.Q4_K)


def test_scalar_takes_one_value() -> None:
    """A tensor without dimensions holds one value."""
    assert tensor_bytes((), TensorType.F32) == 4
