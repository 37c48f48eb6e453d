"""Random weights, the same for the same seed on every machine."""

from __future__ import annotations

import random
import struct

from ggufcluster.core.ggml_types import LAYOUTS, TensorType

LEVELS = 256
FLOAT_FORMATS = {TensorType.F32: "f", TensorType.F16: "e"}


class Weights:
    """A stream of random weights drawn from 256 evenly spaced levels.

    A random byte picks the level, so millions of weights are made by byte translation instead of
    one by one.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - weights, no secret

    def uniform(self, count: int, kind: TensorType, *, reach: float, mean: float = 0.0) -> bytes:
        """Make data for `count` weights between `mean - reach` and `mean + reach`.

        Knows F32, F16 and Q8_0 (for which `count` is a multiple of 32 and `mean` zero); raises
        ValueError for other types.
        """
        picks = self._random.randbytes(count)
        if kind is TensorType.Q8_0:
            return _q8_0(picks, reach)
        if kind not in FLOAT_FORMATS:
            raise ValueError(f"no random weights of type {kind.name}")
        return _floats(picks, FLOAT_FORMATS[kind], reach=reach, mean=mean)

    def bits(self, count: int) -> int:
        """Make one random number of `count` bits."""
        return self._random.getrandbits(count)


def _floats(picks: bytes, code: str, *, reach: float, mean: float) -> bytes:
    half = (LEVELS - 1) / 2
    levels = [mean + reach * (level - half) / half for level in range(LEVELS)]
    size = struct.calcsize(code)
    table = struct.pack(f"<{LEVELS}{code}", *levels)
    data = bytearray(len(picks) * size)
    for position in range(size):
        data[position::size] = picks.translate(table[position::size])
    return bytes(data)


def _q8_0(picks: bytes, reach: float) -> bytes:
    scale = struct.pack("<e", reach / 127)
    per_block = LAYOUTS[TensorType.Q8_0].elements
    # ggml's own quantizer never writes -128.
    numbers = picks.replace(b"\x80", b"\x00")
    starts = range(0, len(numbers), per_block)
    return b"".join(scale + numbers[start : start + per_block] for start in starts)
