"""What the plan needs to know of a model, taken from the headers of its GGUF shards."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ggufcluster.core.gguf_cursor import plain, shown
from ggufcluster.core.kv_cache import INDEX_TYPE, KV_ELEMENT_BYTES, index_values, kv_values
from ggufcluster.core.network import NetworkShape, read_network
from ggufcluster.core.tensor_classes import ClassQuantisation, TensorClass, class_of, quantisation
from ggufcluster.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.core.gguf import GgufHeader, TensorInfo

M3_ARCHITECTURE = "minimax-m3"

_ARCHITECTURE = re.compile(r"[\w.-]{1,64}", re.ASCII)
_LAYER = re.compile(r"blk\.(\d+)\.")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")

_MOST_LAYERS = 4096
_MOST_SHARDS = 1024


class ModelKind(Enum):
    """How a model relates to MiniMax Sparse Attention."""

    M3_SPARSE = "MiniMax-M3 with indexer"
    M3_DENSE = "MiniMax-M3 without indexer"
    OTHER = "another architecture"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes and shapes of one model.

    Attributes:
        name: ``general.name``, or the architecture if the file has none.
        architecture: ``general.architecture``, such as ``minimax-m3``.
        layers: Number of transformer blocks.
        layer_bytes: Weight bytes of each block, in order.
        output_bytes: Weight bytes of the output head and the tensors beside it.
        embedding_bytes: Weight bytes of the token embedding, which stays on the head.
        train_context: Longest context the model was made for, in tokens.
        kv_values: Keys and values per token that each block keeps in the KV cache.
        template: The embedded chat template, or None.
        has_indexer: Whether the tensors of sparse attention are there.
        index_values: Index keys per token that each block keeps beside them, in their own type.
        dense_layers: How many of the first blocks have no experts.
        experts: Experts of each other block; 0 for a dense model.
        experts_used: How many of them each token passes through.
        quantisation: Types and bytes of each class of tensors.
        routed_bytes: Weight bytes of each block's routed experts, in order.
        largest_bytes: Weight bytes of the largest tensor of any block.
        network: Its shapes, None if the file lacks the keys for them.
    """

    name: str
    architecture: str
    layers: int
    layer_bytes: tuple[int, ...]
    output_bytes: int
    embedding_bytes: int
    train_context: int
    kv_values: tuple[int, ...]
    template: str | None
    has_indexer: bool
    index_values: tuple[int, ...] = ()
    dense_layers: int = 0
    experts: int = 0
    experts_used: int = 0
    quantisation: tuple[ClassQuantisation, ...] = ()
    routed_bytes: tuple[int, ...] = ()
    largest_bytes: int = 0
    network: NetworkShape | None = None

    @property
    def weight_bytes(self) -> int:
        """All weights together."""
        return sum(self.layer_bytes) + self.output_bytes + self.embedding_bytes

    @property
    def kind(self) -> ModelKind:
        """Which of the three kinds it is."""
        if self.architecture != M3_ARCHITECTURE:
            return ModelKind.OTHER
        return ModelKind.M3_SPARSE if self.has_indexer else ModelKind.M3_DENSE

    @property
    def bytes_per_token(self) -> float:
        """Weight bytes that one decoded token reads: of the experts only those it passes through.

        The embedding counts with nothing, since a token reads one row of it.
        """
        routed = sum(q.size for q in self.quantisation if q.tensor_class is TensorClass.EXPERTS)
        share = self.experts_used / self.experts if self.experts else 1.0
        return sum(self.layer_bytes) + self.output_bytes - routed * (1 - share)

    def active_bytes(self, layer: int) -> float:
        """Return the weight bytes of one block that one token reads."""
        routed = self.routed_bytes[layer] if self.routed_bytes else 0
        share = self.experts_used / self.experts if self.experts else 1.0
        return self.layer_bytes[layer] - routed * (1 - share)

    def kv_bytes(
        self, layer: int, *, context: int, kv_type: str, index_type: str = INDEX_TYPE
    ) -> int:
        """Return the KV cache of one block for `context` tokens, index keys included, in bytes."""
        return round(self.kv_token_bytes(layer, kv_type=kv_type, index_type=index_type) * context)

    def kv_token_bytes(self, layer: int, *, kv_type: str, index_type: str = INDEX_TYPE) -> float:
        """Return the bytes that one token takes in the KV cache of one block.

        Both types are among `KV_ELEMENT_BYTES`; that of the index keys has its own setting.
        """
        index = self.index_values[layer] if self.index_values else 0
        main = self.kv_values[layer] * KV_ELEMENT_BYTES[kv_type]
        return main + index * KV_ELEMENT_BYTES[index_type]


def shard_names(file_name: str) -> tuple[str, ...]:
    """Return the names of all shards of the set that `file_name` belongs to, in order.

    A file that is not part of a set stands alone, as does one whose name claims a count that no
    set has. The names need not hold `file_name`: its number may be beyond the count.
    """
    found = _SHARD.match(file_name)
    if not found or not 1 <= int(found["count"]) <= _MOST_SHARDS:
        return (file_name,)
    count = int(found["count"])
    return tuple(f"{found['stem']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1))


def read_facts(headers: Sequence[GgufHeader]) -> ModelFacts:
    """Gather the facts from the headers of all shards, first shard first.

    Raises:
        ModelFileError: A key that every language model has is missing.
    """
    first = headers[0]
    architecture = _architecture(first)
    layers = first.number(f"{architecture}.block_count")
    if not 1 <= layers <= _MOST_LAYERS:
        raise ModelFileError(f"has {layers} layers")
    tensors = [tensor for header in headers for tensor in header.tensors]
    weights = _weights(headers)
    indexed = frozenset(
        layer_of(t.name) for t in tensors if class_of(t.name) is TensorClass.INDEXER
    )
    # Without an output head of its own, a model uses a copy of its embedding there.
    own_output = any(tensor.name == "output.weight" for tensor in tensors)
    return ModelFacts(
        name=plain(first.text("general.name") or architecture),
        architecture=architecture,
        layers=layers,
        layer_bytes=tuple(weights[layer] for layer in range(layers)),
        output_bytes=weights["output"] + (0 if own_output else weights["embedding"]),
        embedding_bytes=weights["embedding"],
        train_context=first.number(f"{architecture}.context_length"),
        kv_values=kv_values(first, architecture, layers),
        template=first.text("tokenizer.chat_template"),
        has_indexer=bool(indexed),
        index_values=index_values(first, architecture, layers, indexed=indexed),
        dense_layers=first.optional(f"{architecture}.leading_dense_block_count"),
        experts=first.optional(f"{architecture}.expert_count"),
        experts_used=first.optional(f"{architecture}.expert_used_count"),
        quantisation=quantisation(tensors),
        routed_bytes=_routed_bytes(tensors, layers),
        largest_bytes=max((t.size for t in tensors if layer_of(t.name) is not None), default=0),
        network=read_network(first, architecture, vocabulary=_vocabulary(tensors)),
    )


def layer_of(name: str) -> int | None:
    """Return the block that a tensor belongs to, None for those outside the blocks."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def _architecture(first: GgufHeader) -> str:
    kind = first.text("general.type") or "model"
    if kind != "model":
        raise ModelFileError(f"general.type is {shown(kind)}: not a language model")
    architecture = first.text("general.architecture")
    if not architecture:
        raise ModelFileError("has no general.architecture: not a language model")
    if not _ARCHITECTURE.fullmatch(architecture):
        raise ModelFileError(f"general.architecture is {shown(architecture)}")
    if architecture == "clip":
        raise ModelFileError("is a vision projector, not a language model")
    return architecture


def _vocabulary(tensors: Sequence[TensorInfo]) -> int:
    return max(
        (t.shape[-1] for t in tensors if t.name == "token_embd.weight" and t.shape), default=0
    )


def _routed_bytes(tensors: Sequence[TensorInfo], layers: int) -> tuple[int, ...]:
    sizes: defaultdict[int | None, int] = defaultdict(int)
    for tensor in tensors:
        if class_of(tensor.name) is TensorClass.EXPERTS:
            sizes[layer_of(tensor.name)] += tensor.size
    return tuple(sizes[layer] for layer in range(layers))


def _weights(headers: Sequence[GgufHeader]) -> defaultdict[int | str, int]:
    sizes: defaultdict[int | str, int] = defaultdict(int)
    for header in headers:
        for tensor in header.tensors:
            sizes[_place(tensor.name)] += tensor.size
    return sizes


def _place(name: str) -> int | str:
    layer = layer_of(name)
    if layer is not None:
        return layer
    return "embedding" if name.startswith("token_embd") else "output"
