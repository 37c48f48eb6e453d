"""What the plan needs to know of a model, taken from the headers of its GGUF shards."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.core.gguf import GgufHeader

_LAYER = re.compile(r"blk\.(\d+)\.")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")

_MOST_LAYERS = 4096

# Bytes of one element in the KV cache: a q8_0 block is 34 bytes for 32 values, q4_0 is 18.
KV_ELEMENT_BYTES = {"f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}


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
        kv_values: Values per token that each block keeps in the KV cache.
        template: The embedded chat template, or None.
        has_indexer: Whether the tensors of sparse attention are there.
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

    @property
    def weight_bytes(self) -> int:
        """All weights together."""
        return sum(self.layer_bytes) + self.output_bytes + self.embedding_bytes

    def kv_bytes(self, layer: int, *, context: int, kv_type: str) -> int:
        """Return the KV cache of one block for `context` tokens, in bytes."""
        return round(self.kv_values[layer] * KV_ELEMENT_BYTES[kv_type] * context)


def shard_names(file_name: str) -> tuple[str, ...]:
    """Return the names of all shards of the set that `file_name` belongs to, in order.

    A file that is not part of a set stands alone.
    """
    found = _SHARD.match(file_name)
    if not found:
        return (file_name,)
    count = int(found["count"])
    return tuple(f"{found['stem']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1))


def read_facts(headers: Sequence[GgufHeader]) -> ModelFacts:
    """Gather the facts from the headers of all shards, first shard first.

    Raises:
        ModelFileError: A key that every language model has is missing.
    """
    first = headers[0]
    architecture = str(first.get("general.architecture") or "")
    if not architecture:
        raise ModelFileError("has no general.architecture: not a language model")
    layers = _number(first, f"{architecture}.block_count")
    if not 1 <= layers <= _MOST_LAYERS:
        raise ModelFileError(f"has {layers} layers")
    weights = _weights(headers)
    names = _names(headers)
    indexer = any(".indexer" in name or ".index_" in name for name in names)
    # Without an output head of its own, a model uses a copy of its embedding there.
    tied = 0 if "output.weight" in names else weights["embedding"]
    return ModelFacts(
        name=str(first.get("general.name") or architecture),
        architecture=architecture,
        layers=layers,
        layer_bytes=tuple(weights[layer] for layer in range(layers)),
        output_bytes=weights["output"] + tied,
        embedding_bytes=weights["embedding"],
        train_context=_number(first, f"{architecture}.context_length"),
        kv_values=_kv_values(first, architecture, layers, indexer=indexer),
        template=_text(first, "tokenizer.chat_template"),
        has_indexer=indexer,
    )


def _names(headers: Sequence[GgufHeader]) -> list[str]:
    return [tensor.name for header in headers for tensor in header.tensors]


def _weights(headers: Sequence[GgufHeader]) -> defaultdict[int | str, int]:
    sizes: defaultdict[int | str, int] = defaultdict(int)
    for header in headers:
        for tensor in header.tensors:
            sizes[_place(tensor.name)] += tensor.size
    return sizes


def _place(name: str) -> int | str:
    if found := _LAYER.match(name):
        return int(found[1])
    return "embedding" if name.startswith("token_embd") else "output"


def _kv_values(
    header: GgufHeader, architecture: str, layers: int, *, indexer: bool
) -> tuple[int, ...]:
    heads = header.get(f"{architecture}.attention.head_count_kv")
    per_layer = heads if isinstance(heads, tuple) else (heads,) * layers
    width = _head_width(header, architecture)
    # llama.cpp keeps a key and an unused value of the indexer's width beside the real ones.
    extra = 2 * _optional(header, f"{architecture}.attention.indexer.key_length") if indexer else 0
    return tuple(_count(value) * width + extra for value in per_layer)


def _head_width(header: GgufHeader, architecture: str) -> int:
    heads = header.get(f"{architecture}.attention.head_count")
    most = max(map(_count, heads)) if isinstance(heads, tuple) else _count(heads)
    embedding = _number(header, f"{architecture}.embedding_length")
    default = embedding // (most or 1)
    key = _optional(header, f"{architecture}.attention.key_length") or default
    value = _optional(header, f"{architecture}.attention.value_length") or default
    return key + value


def _count(value: object) -> int:
    return value if isinstance(value, int) else 0


def _text(header: GgufHeader, key: str) -> str | None:
    value = header.get(key)
    return value if isinstance(value, str) else None


def _optional(header: GgufHeader, key: str) -> int:
    value = header.get(key)
    return value if isinstance(value, int) else 0


def _number(header: GgufHeader, key: str) -> int:
    value = header.get(key)
    if not isinstance(value, int):
        raise ModelFileError(f"has no {key}")
    return value
