"""What a toy was converted from, as far as its indexer goes: a model in safetensors files.

With a toy from `without_indexer` it stands for a GGUF of the dense conversion and its original.
"""

from __future__ import annotations

import json
import re
import struct
from typing import TYPE_CHECKING

from ggufcluster.core.gguf_write import GgufModel, Tensor
from ggufcluster.core.m3_tensors import INDEXER_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = "model.safetensors.index.json"

_TAKEN = re.compile(r"blk\.(\d+)\.(?:indexer\.([qk]_(?:proj|norm))|(attn_norm))\.weight")


def without_indexer(model: GgufModel) -> GgufModel:
    """Return a toy as the dense conversion makes it: the same weights, no indexer."""
    metadata = {key: value for key, value in model.metadata.items() if key not in INDEXER_KEYS}
    tensors = [tensor for tensor in model.tensors if ".indexer." not in tensor.name]
    return GgufModel(metadata, tensors)


def original_files(model: GgufModel, *, prefix: str = "language_model.") -> dict[str, bytes]:
    """Return config, index and weight files, by name, of which the toy is the conversion.

    They hold the indexer and the norms before attention, in F32, norms without their one.
    """
    taken = [_original(tensor, prefix) for tensor in model.tensors if _TAKEN.match(tensor.name)]
    halves = taken[0::2], taken[1::2]
    files = {name: _safetensors(half) for name, half in zip(FILES, halves, strict=True)}
    weight_map = {
        tensor.name: name for name, half in zip(FILES, halves, strict=True) for tensor in half
    }
    files[INDEX] = json.dumps({"weight_map": weight_map}).encode()
    files["config.json"] = json.dumps({"text_config": _config(model)}).encode()
    return files


def _original(tensor: Tensor, prefix: str) -> Tensor:
    found = _TAKEN.match(tensor.name)
    assert found is not None
    layer, part, _norm = found.groups()
    name = f"self_attn.index_{part}" if part else "input_layernorm"
    data = tensor.data
    if tensor.name.endswith("norm.weight"):
        numbers = struct.unpack(f"<{len(data) // 4}f", data)
        data = struct.pack(f"<{len(numbers)}f", *(number - 1.0 for number in numbers))
    return Tensor(f"{prefix}model.layers.{layer}.{name}.weight", tensor.shape, tensor.type, data)


def _safetensors(tensors: list[Tensor]) -> bytes:
    entries, offset = {}, 0
    for tensor in tensors:
        end = offset + len(tensor.data)
        shape = list(reversed(tensor.shape))
        entries[tensor.name] = {
            "dtype": tensor.type.name,
            "shape": shape,
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return struct.pack("<Q", len(header)) + header + b"".join(t.data for t in tensors)


def _config(model: GgufModel) -> Mapping[str, object]:
    numbers = [model.metadata[key].value for key in INDEXER_KEYS]
    heads, width, top, block, local = numbers
    return {
        "sparse_attention_config": {
            "sparse_num_index_heads": heads,
            "sparse_index_dim": width,
            "sparse_topk_blocks": top,
            "sparse_block_size": block,
            "sparse_init_block": 0,
            "sparse_local_block": local,
        }
    }
