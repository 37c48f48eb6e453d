"""The tensors that a MiniMax-M3 must have, and the indexer that it may have.

Names, shapes and keys are those that the pinned llama.cpp loads (src/models/minimax-m3.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.gguf_cursor import shown
from ggufcluster.core.model import M3_ARCHITECTURE
from ggufcluster.core.tensor_classes import TensorClass, class_of
from ggufcluster.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ggufcluster.core.gguf import GgufHeader, Scalar

Shape = tuple[int, ...]

INDEXER_KEYS = tuple(
    f"{M3_ARCHITECTURE}.attention.indexer.{name}"
    for name in ("head_count", "key_length", "top_k", "block_size", "local_blocks")
)


@dataclass(frozen=True, slots=True)
class M3Shape:
    """Sizes of a MiniMax-M3, from its keys."""

    layers: int
    dense_layers: int
    width: int
    dense_width: int
    heads: int
    key_value_heads: int
    head_size: int
    experts: int
    expert_width: int
    shared_experts: int
    index_heads: int
    index_size: int

    @property
    def sparse_layers(self) -> range:
        """The layers with experts, which are those that may have an indexer."""
        return range(self.dense_layers, self.layers)

    def tensors(self) -> Iterator[tuple[str, Shape]]:
        """Yield name and shape of every tensor of the blocks but for the indexer's."""
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            yield from _named(prefix, self._attention())
            if layer < self.dense_layers:
                yield from _named(prefix, self._dense())
            else:
                yield from _named(prefix, self._experts())
                yield f"{prefix}exp_probs_b.bias", (self.experts,)

    def indexer(self, layer: int) -> Iterator[tuple[str, Shape]]:
        """Yield name and shape of the indexer's tensors of one layer."""
        shapes: dict[str, Shape] = {
            "q_proj": (self.width, self.index_heads * self.index_size),
            "k_proj": (self.width, self.index_size),
            "q_norm": (self.index_size,),
            "k_norm": (self.index_size,),
        }
        yield from _named(f"blk.{layer}.indexer.", shapes)

    def _attention(self) -> dict[str, Shape]:
        queries = self.heads * self.head_size
        keys = self.key_value_heads * self.head_size
        return {
            "attn_norm": (self.width,),
            "attn_q": (self.width, queries),
            "attn_k": (self.width, keys),
            "attn_v": (self.width, keys),
            "attn_output": (queries, self.width),
            "attn_q_norm": (self.head_size,),
            "attn_k_norm": (self.head_size,),
            "ffn_norm": (self.width,),
        }

    def _dense(self) -> dict[str, Shape]:
        return _gated("ffn_{}", self.width, self.dense_width)

    def _experts(self) -> dict[str, Shape]:
        shared = self.expert_width * self.shared_experts
        routed = _gated("ffn_{}_exps", self.width, self.expert_width)
        return {
            "ffn_gate_inp": (self.width, self.experts),
            **{name: (*shape, self.experts) for name, shape in routed.items()},
            **_gated("ffn_{}_shexp", self.width, shared),
        }


def read_shape(first: GgufHeader) -> M3Shape:
    """Read the sizes from the first shard's keys.

    Raises:
        ModelFileError: One that every conversion has is missing.
    """

    def number(key: str) -> int:
        key = f"{M3_ARCHITECTURE}.{key}"
        value = first.get(key)
        # A size may be stored once for each layer; in this architecture all are equal.
        return _only(value, key) if isinstance(value, tuple) else first.number(key)

    def optional(key: str) -> int:
        return number(key) if f"{M3_ARCHITECTURE}.{key}" in first.metadata else 0

    heads = number("attention.head_count")
    return M3Shape(
        layers=number("block_count"),
        dense_layers=optional("leading_dense_block_count"),
        width=number("embedding_length"),
        dense_width=number("feed_forward_length"),
        heads=heads,
        key_value_heads=optional("attention.head_count_kv") or heads,
        head_size=optional("attention.key_length") or number("embedding_length") // max(heads, 1),
        experts=number("expert_count"),
        expert_width=number("expert_feed_forward_length"),
        shared_experts=number("expert_shared_count"),
        index_heads=optional("attention.indexer.head_count"),
        index_size=optional("attention.indexer.key_length"),
    )


def check_m3(first: GgufHeader, shapes: Mapping[str, Shape]) -> None:
    """Make sure that all tensors are there, and the indexer whole or not at all.

    Args:
        first: Header of the first shard.
        shapes: Shape of every tensor of all shards by name.

    Raises:
        ModelFileError: The model is damaged.
    """
    shape = read_shape(first)
    wanted = {name: s for name, s in shape.tensors() if not _is_fused(name, shapes)}
    _require(wanted, shapes, "tensors")
    present = any(class_of(name) is TensorClass.INDEXER for name in shapes)
    keys = [key for key in INDEXER_KEYS if first.optional(key) > 0]
    if not present and not keys:
        return
    if len(keys) < len(INDEXER_KEYS):
        missing = next(key for key in INDEXER_KEYS if key not in keys)
        raise ModelFileError(f"has an indexer but no {missing}")
    if shape.index_heads != shape.key_value_heads:
        reason = f"has {shape.index_heads} indexer heads for {shape.key_value_heads} groups"
        raise ModelFileError(reason)
    indexer = {name: s for layer in shape.sparse_layers for name, s in shape.indexer(layer)}
    _require(indexer, shapes, "indexer tensors")


def _require(wanted: Mapping[str, Shape], shapes: Mapping[str, Shape], what: str) -> None:
    missing = [name for name in wanted if name not in shapes]
    if missing:
        raise ModelFileError(
            f"{len(missing)} of {len(wanted)} {what} are missing, the first is {missing[0]}"
        )
    for name, shape in wanted.items():
        if shapes[name] != shape:
            raise ModelFileError(
                f"tensor {shown(name)} has the shape {shapes[name]} instead of {shape}"
            )


def _only(values: tuple[Scalar, ...], key: str) -> int:
    found = set(values)
    one = found.pop() if len(found) == 1 else None
    if not isinstance(one, int):
        raise ModelFileError(f"has other numbers than one for all layers in {key}")
    return one


def _is_fused(name: str, shapes: Mapping[str, Shape]) -> bool:
    """Tell whether a matrix is part of a fused one, which llama.cpp takes as well."""
    prefix, _, last = name.rpartition(".attn_")
    parts = ("q.weight", "k.weight", "v.weight")
    return last in parts and f"{prefix}.attn_qkv.weight" in shapes


def _gated(pattern: str, outer: int, inner: int) -> dict[str, Shape]:
    return {
        pattern.format("gate"): (outer, inner),
        pattern.format("up"): (outer, inner),
        pattern.format("down"): (inner, outer),
    }


def _named(prefix: str, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Shape]]:
    return ((f"{prefix}{name}.weight", shape) for name, shape in shapes.items())
