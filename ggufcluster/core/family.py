"""Defaults that belong to a model family rather than to a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from ggufcluster.core.units import MIB

_COMPUTE_FLOOR = 256 * MIB


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of models is best run; every value can be overridden.

    Attributes:
        sampling: llama-server options and values.
        kv_type: KV cache type.
        ubatch: Tokens per ubatch; a bigger one crosses the network less often.
        contexts: Context sizes to try, largest first; the first that fits is taken.
        compute_cell_bytes: Compute buffer for each pair of a context token and an ubatch token.
        sparse: Whether the family has sparse attention, so that losing it must be noticed.
    """

    sampling: tuple[tuple[str, str], ...]
    kv_type: str
    ubatch: int
    contexts: tuple[int, ...]
    compute_cell_bytes: int
    sparse: bool

    def compute_bytes(self, context: int, ubatch: int) -> int:
        """Estimate the compute buffer of one device, in bytes."""
        return _COMPUTE_FLOOR + self.compute_cell_bytes * context * ubatch


# Sampling as the model's makers recommend; q8_0 halves the cache at no cost seen in reports.
MINIMAX_M3 = Family(
    sampling=(("--temp", "1.0"), ("--top-p", "0.95"), ("--top-k", "40")),
    kv_type="q8_0",
    ubatch=2048,
    contexts=(131_072, 65_536, 32_768),
    # Public report of the generic sparse path: 4.8 GiB at a context of 96,000 and an ubatch of
    # 2,048 (llama.cpp #26297), which is 26 bytes a cell.
    compute_cell_bytes=26,
    sparse=True,
)

OTHER = Family(
    sampling=(),
    kv_type="f16",
    ubatch=512,
    contexts=(131_072, 65_536, 32_768, 16_384, 8_192, 4_096),
    compute_cell_bytes=4,  # the attention mask, in f16, twice
    sparse=False,
)


def family_of(architecture: str) -> Family:
    """Return the defaults for an architecture name such as ``minimax-m3``."""
    return MINIMAX_M3 if architecture == "minimax-m3" else OTHER
