"""Known GGUFs of MiniMax-M3 and whether they carry the indexer of its sparse attention.

What is known was read in public reports: llama.cpp #24908, #26155, #26260 and #26297, and
unslothai/unsloth #8360. Sizes that nobody reported are None until the hub is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ggufcluster.core.download.choice import quants
from ggufcluster.core.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ggufcluster.core.download.listing import Listing


@dataclass(frozen=True, slots=True)
class Preset:
    """One known model.

    Attributes:
        repository: ``owner/name``.
        quant: Quantisation; None if which there are is not known.
        has_indexer: Whether sparse attention can run; without, attention is dense.
        size: Bytes of all shards; None if not known.
        is_live: Whether the hub said so just now.
    """

    repository: str
    quant: str | None
    has_indexer: bool
    size: int | None
    is_live: bool = False


PRESETS = (
    Preset("unsloth/MiniMax-M3-GGUF", "UD-IQ4_XS", has_indexer=False, size=194 * GIB),
    Preset("AesSedai/MiniMax-M3-GGUF", "IQ3_S", has_indexer=True, size=159_000_000_000),
    Preset("Serpen/Minimax-M3-MSA-GGUF", None, has_indexer=True, size=None),
    Preset("bartowski/MiniMax-M3-GGUF", None, has_indexer=True, size=None),
    Preset("avar6/minimax-m3-MSA-gguf", None, has_indexer=True, size=None),
)


def live(preset: Preset, listing: Listing) -> tuple[Preset, ...]:
    """Return every model of the preset's repository, with its real size, smallest first."""
    found = (
        replace(preset, quant=quant, size=sum(file.size for file in files), is_live=True)
        for quant, files in quants(listing).items()
    )
    return tuple(sorted(found, key=lambda model: model.size or 0))


def spare_bytes(size: int | None, usable: Iterable[int]) -> int | None:
    """Return what stays free of the nodes' memory beside the weights; negative if they do not fit.

    Args:
        size: Bytes of the model; None if not known.
        usable: Memory of each node that may be filled, in bytes.
    """
    return None if size is None else sum(usable) - size
