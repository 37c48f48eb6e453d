"""Defaults that belong to a model family rather than to a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """How a family of models is best run; every value can be overridden.

    Attributes:
        sampling: llama-server options and values.
        kv_type: KV cache type.
        ubatch: Tokens per ubatch; a bigger one crosses the network less often.
        contexts: Context sizes to try, largest first; the first that fits is taken.
        sparse: Whether the family has sparse attention, so that losing it must be noticed.
    """

    sampling: tuple[tuple[str, str], ...]
    kv_type: str
    ubatch: int
    contexts: tuple[int, ...]
    sparse: bool


# Sampling as the model's makers recommend; q8_0 halves the cache at no cost seen in reports.
MINIMAX_M3 = Family(
    sampling=(("--temp", "1.0"), ("--top-p", "0.95"), ("--top-k", "40")),
    kv_type="q8_0",
    ubatch=2048,
    contexts=(131_072, 65_536, 32_768, 16_384, 8_192),
    sparse=True,
)

OTHER = Family(
    sampling=(),
    kv_type="f16",
    ubatch=512,
    contexts=(131_072, 65_536, 32_768, 16_384, 8_192, 4_096),
    sparse=False,
)


def family_of(architecture: str) -> Family:
    """Return the defaults for an architecture name such as ``minimax-m3``."""
    return MINIMAX_M3 if architecture == "minimax-m3" else OTHER
