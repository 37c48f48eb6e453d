"""How many bytes a tensor of each ggml type takes."""

from __future__ import annotations

from enum import IntEnum
from math import prod
from typing import NamedTuple


class TensorType(IntEnum):
    """Number of a ggml type in a GGUF file, as of the pinned llama.cpp (ggml.h, `ggml_type`)."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42


class Layout(NamedTuple):
    """`elements` values of a row are stored together in `bytes` bytes."""

    elements: int
    bytes: int


LAYOUTS: dict[TensorType, Layout] = {
    TensorType.F32: Layout(1, 4),
    TensorType.F16: Layout(1, 2),
    TensorType.BF16: Layout(1, 2),
    TensorType.F64: Layout(1, 8),
    TensorType.I8: Layout(1, 1),
    TensorType.I16: Layout(1, 2),
    TensorType.I32: Layout(1, 4),
    TensorType.I64: Layout(1, 8),
    TensorType.Q4_0: Layout(32, 18),
    TensorType.Q4_1: Layout(32, 20),
    TensorType.Q5_0: Layout(32, 22),
    TensorType.Q5_1: Layout(32, 24),
    TensorType.Q8_0: Layout(32, 34),
    TensorType.Q8_1: Layout(32, 36),
    TensorType.IQ4_NL: Layout(32, 18),
    TensorType.MXFP4: Layout(32, 17),
    TensorType.NVFP4: Layout(64, 36),
    TensorType.Q2_0: Layout(64, 18),
    TensorType.Q1_0: Layout(128, 18),
    TensorType.Q2_K: Layout(256, 84),
    TensorType.Q3_K: Layout(256, 110),
    TensorType.Q4_K: Layout(256, 144),
    TensorType.Q5_K: Layout(256, 176),
    TensorType.Q6_K: Layout(256, 210),
    TensorType.Q8_K: Layout(256, 292),
    TensorType.IQ1_S: Layout(256, 50),
    TensorType.IQ1_M: Layout(256, 56),
    TensorType.IQ2_XXS: Layout(256, 66),
    TensorType.IQ2_XS: Layout(256, 74),
    TensorType.IQ2_S: Layout(256, 82),
    TensorType.IQ3_XXS: Layout(256, 98),
    TensorType.IQ3_S: Layout(256, 110),
    TensorType.IQ4_XS: Layout(256, 136),
    TensorType.TQ1_0: Layout(256, 54),
    TensorType.TQ2_0: Layout(256, 66),
}


# What the engine multiplies with on every backend that we build (measured for each type on the
# CPU; on CUDA read from its list of supported operations): anything else ends it with a crash.
MATRIX_TYPES = frozenset(TensorType) - {
    TensorType.Q8_1,
    TensorType.Q8_K,
    TensorType.I8,
    TensorType.I16,
    TensorType.I32,
    TensorType.I64,
    TensorType.F64,
}
# No CUDA kernel multiplies with these.
CPU_ONLY_TYPES = frozenset({TensorType.TQ1_0, TensorType.TQ2_0})


def tensor_bytes(shape: tuple[int, ...], kind: TensorType) -> int:
    """Count the bytes of a tensor whose first dimension is the row length.

    Raises ValueError if a row does not fill whole blocks of its type.
    """
    layout = LAYOUTS[kind]
    row = shape[0] if shape else 1
    if row % layout.elements:
        raise ValueError(f"rows of {row} do not fill {kind.name} blocks of {layout.elements}")
    return prod(shape) // layout.elements * layout.bytes
