"""What a tensor is for, and how each class of tensors of a model is quantised.

Names are those that llama.cpp's converters write (src/llama-arch.cpp of the pin).
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ggufcluster.core.ggml_types import TensorType
    from ggufcluster.core.gguf import TensorInfo


class TensorClass(Enum):
    """What a tensor is for, in the order in which classes are shown."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    INDEXER = "indexer"
    DENSE = "dense feed-forward"
    ROUTER = "router"
    EXPERTS = "experts"
    SHARED = "shared experts"
    NORM = "norms"
    OUTPUT = "output"
    OTHER = "other"


# Order matters: an indexer's norm belongs to the indexer, an expert's matrix to the experts.
_PATTERNS: tuple[tuple[TensorClass, re.Pattern[str]], ...] = (
    (TensorClass.EMBEDDING, re.compile(r"token_embd\.")),
    (TensorClass.OUTPUT, re.compile(r"output\.")),
    (TensorClass.INDEXER, re.compile(r"blk\.\d+\.index(er|_)")),
    (TensorClass.NORM, re.compile(r".*norm[._]|.*norm$")),
    (TensorClass.ROUTER, re.compile(r"blk\.\d+\.(ffn_gate_(inp|tid)|exp_probs)")),
    (TensorClass.SHARED, re.compile(r"blk\.\d+\.ffn_\w+_shexp")),
    (TensorClass.EXPERTS, re.compile(r"blk\.\d+\.ffn_\w+_(ch)?exps")),
    (TensorClass.ATTENTION, re.compile(r"blk\.\d+\.attn_")),
    (TensorClass.DENSE, re.compile(r"blk\.\d+\.ffn_")),
)


@dataclass(frozen=True, slots=True)
class TypeUse:
    """How much of a class is stored in one type; `size` is in bytes, `weights` counts numbers."""

    type: TensorType
    tensors: int
    weights: int
    size: int


@dataclass(frozen=True, slots=True)
class ClassQuantisation:
    """The types of one class of tensors, most bytes first."""

    tensor_class: TensorClass
    uses: tuple[TypeUse, ...]

    @property
    def size(self) -> int:
        """Bytes of the whole class."""
        return sum(use.size for use in self.uses)

    @property
    def bits_per_weight(self) -> float:
        """Bits that one number takes on average."""
        weights = sum(use.weights for use in self.uses)
        return 8 * self.size / weights if weights else 0.0


def class_of(name: str) -> TensorClass:
    """Tell from its name what a tensor is for."""
    found = (kind for kind, pattern in _PATTERNS if pattern.match(name))
    return next(found, TensorClass.OTHER)


def quantisation(tensors: Iterable[TensorInfo]) -> tuple[ClassQuantisation, ...]:
    """Sum up the types of every class that occurs, in the order of `TensorClass`."""
    groups: defaultdict[TensorClass, defaultdict[TensorType, list[TensorInfo]]]
    groups = defaultdict(lambda: defaultdict(list))
    for tensor in tensors:
        groups[class_of(tensor.name)][tensor.type].append(tensor)
    return tuple(
        ClassQuantisation(kind, _uses(groups[kind])) for kind in TensorClass if kind in groups
    )


def _uses(by_type: dict[TensorType, list[TensorInfo]]) -> tuple[TypeUse, ...]:
    uses = (
        TypeUse(
            kind,
            tensors=len(infos),
            weights=sum(prod(info.shape) for info in infos),
            size=sum(info.size for info in infos),
        )
        for kind, infos in by_type.items()
    )
    return tuple(sorted(uses, key=lambda use: (-use.size, use.type)))
