"""Decide how the indexer of an original MiniMax-M3 is added to a GGUF that lacks it.

A new first shard says that there is one shard more, and that one holds the indexer; the shards
between stay as they are. What the tensors become follows the pin's converter
(conversion/minimax.py): F32, the norms with their +1.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf import Value, ValueType
from ggufcluster.core.gguf_write import pair, uint32
from ggufcluster.core.m3_tensors import INDEXER_KEYS, M3Shape
from ggufcluster.core.model import ModelKind, shard_names
from ggufcluster.core.shards import GRAFTED_SHARDS, SPLIT_COUNT, SPLIT_NUMBER, SPLIT_TENSORS
from ggufcluster.errors import GraftError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ggufcluster.core.gguf import GgufHeader
    from ggufcluster.core.inspection import Inspection

ORIGINAL = "MiniMaxAI/MiniMax-M3"
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_LAYER_NAME = re.compile(
    r"(?:.*\.)?layers\.(?P<layer>\d+)\.(?:self_attn\.index_(?P<part>[qk]_(?:proj|norm))"
    r"|(?P<norm>input_layernorm))\.weight"
)
_NUMBERS = {
    "head_count": "sparse_num_index_heads",
    "key_length": "sparse_index_dim",
    "top_k": "sparse_topk_blocks",
    "block_size": "sparse_block_size",
    "local_blocks": "sparse_local_block",
}
_SPLIT_KEYS = (SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS, GRAFTED_SHARDS)
_MOST_OF_A_NUMBER = 1 << 20


@dataclass(frozen=True, slots=True)
class IndexerTensor:
    """A tensor of the new shard; has what `gguf_write.head` asks for."""

    name: str
    shape: tuple[int, ...]
    type: TensorType = TensorType.F32

    @property
    def plus_one(self) -> bool:
        """Whether the original keeps it without its one."""
        return self.name.endswith("_norm.weight")


def require_graftable(found: Inspection, *, path: str) -> None:
    """Make sure that a model is a MiniMax-M3 without indexer.

    Raises:
        GraftError: It is not.
    """
    if found.facts.kind is ModelKind.M3_SPARSE:
        raise GraftError("has its indexer already", path=path)
    if found.facts.kind is not ModelKind.M3_DENSE:
        raise GraftError(f"is of architecture {found.facts.architecture}, no MiniMax-M3", path=path)


def indexer_numbers(config: bytes, *, path: str) -> dict[str, int]:
    """Read the five numbers of sparse attention from the original's config.json.

    Raises:
        GraftError: One is missing, or the original needs what the engine does not have.
    """
    found = _json(config, path=path)
    text = found.get("text_config")
    section = (text if isinstance(text, dict) else found).get("sparse_attention_config")
    if not isinstance(section, dict):
        raise GraftError("has no sparse_attention_config", path=path)
    if section.get("sparse_init_block", 0):
        raise GraftError("always selects first blocks, which the engine does not know", path=path)
    numbers = {key: section.get(name) for key, name in _NUMBERS.items()}
    for key, number in numbers.items():
        if not isinstance(number, int) or not 0 < number <= _MOST_OF_A_NUMBER:
            raise GraftError(f"has {number!r} for {_NUMBERS[key]}", path=path)
    return {key: int(number or 0) for key, number in numbers.items()}


def weight_files(index: bytes, *, path: str) -> dict[str, str]:
    """Return the file of each tensor by name from the original's index.

    Raises:
        GraftError: The index is damaged, or a name would leave the folder.
    """
    files = _json(index, path=path).get("weight_map")
    if not isinstance(files, dict):
        raise GraftError("has no weight_map", path=path)
    for name in set(map(str, files.values())):
        if not re.fullmatch(r"[\w.-]+\.safetensors", name, re.ASCII):
            raise GraftError(f"names the file {name[:80]!r}", path=path)
    return {str(tensor): str(file) for tensor, file in files.items()}


def original_names(names: Iterable[str]) -> dict[str, str]:
    """Return the original's name of each tensor that a graft reads, by its name in a GGUF.

    Beside the indexer these are the norms before attention, by which weights are recognised.
    """
    found = {}
    for name in names:
        if match := _LAYER_NAME.fullmatch(name):
            part = f"indexer.{match['part']}" if match["part"] else "attn_norm"
            found[f"blk.{match['layer']}.{part}.weight"] = name
    return found


def indexer_tensors(shape: M3Shape) -> list[IndexerTensor]:
    """Return all tensors of the new shard, in the order of the layers."""
    return [
        IndexerTensor(name, size)
        for layer in shape.sparse_layers
        for name, size in shape.indexer(layer)
    ]


def new_names(file_name: str) -> tuple[str, ...]:
    """Return the names of the new set for a set that a file belongs to."""
    old = shard_names(file_name)
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", old[0].removesuffix(".gguf"))
    count = len(old) + 1
    return tuple(f"{stem}-indexer-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1))


def first_pairs(
    first: GgufHeader, stored: bytes, numbers: Mapping[str, int], *, shards: int, tensors: int
) -> list[bytes]:
    """Return the keys of the new first shard: those of the old one as stored, and the new ones.

    Args:
        first: Header of the old first shard.
        stored: Bytes of that file up to its last key.
        numbers: What `indexer_numbers` gives.
        shards: How many shards the old set has.
        tensors: How many tensors the new set has.
    """
    dropped = {*_SPLIT_KEYS, *INDEXER_KEYS}
    kept = [stored[slice(*span)] for key, span in first.key_spans.items() if key not in dropped]
    new = split_keys(0, shards=shards, tensors=tensors)
    new |= {key: uint32(numbers[key.rpartition(".")[2]]) for key in INDEXER_KEYS}
    new[GRAFTED_SHARDS] = uint32(shards)
    return kept + [pair(key, value) for key, value in new.items()]


def split_keys(number: int, *, shards: int, tensors: int) -> dict[str, Value]:
    """Return the keys that make a file part of the new set, in the types of llama-gguf-split."""
    return {
        SPLIT_NUMBER: Value(ValueType.UINT16, number),
        SPLIT_COUNT: Value(ValueType.UINT16, shards + 1),
        SPLIT_TENSORS: Value(ValueType.INT32, tensors),
    }


def _json(text: bytes, *, path: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GraftError("is not JSON", path=path) from error
    if not isinstance(found, dict):
        raise GraftError("is not a JSON object", path=path)
    return found
