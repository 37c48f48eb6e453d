"""A GGUF file of a few kilobytes that has all that a plan asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf_write import GgufModel, Tensor, string, uint32
from ggufcluster.core.model import M3_ARCHITECTURE
from ggufcluster.core.toy import random_model
from ggufcluster.core.toy_network import ToyShape

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 64


def write_model(
    path: Path,
    *,
    layers: int = 4,
    template: str | None = None,
    architecture: str = "llama",
    indexer: bool = False,
) -> Path:
    """Write a model whose tensors hold nothing of use, and return its path."""
    is_m3 = architecture == M3_ARCHITECTURE
    model = tiny_m3(layers, indexer=indexer) if is_m3 else tiny(layers, architecture)
    metadata = dict(model.metadata) | {"general.name": string("Tiny")}
    metadata.pop("tokenizer.chat_template", None)
    if template is not None:
        metadata["tokenizer.chat_template"] = string(template)
    path.write_bytes(GgufModel(metadata, model.tensors).to_bytes())
    return path


def tiny(layers: int = 4, architecture: str = "llama") -> GgufModel:
    """Make a model with one tensor for each layer."""
    numbers = {
        "block_count": layers,
        "context_length": 8192,
        "embedding_length": WIDTH,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    metadata = {"general.architecture": string(architecture), "general.name": string("Tiny")}
    metadata |= {f"{architecture}.{key}": uint32(value) for key, value in numbers.items()}
    names = ["token_embd.weight", *(f"blk.{n}.attn_q.weight" for n in range(layers))]
    names += ["output.weight"]
    shape, data = (WIDTH, 2), bytes(2 * 4 * WIDTH)
    return GgufModel(metadata, [Tensor(name, shape, TensorType.F32, data) for name in names])


def tiny_m3(layers: int = 4, *, indexer: bool = True) -> GgufModel:
    """Make a MiniMax-M3 with all its tensors, as small as they may be."""
    shape = ToyShape(
        layers=layers,
        dense_layers=1,
        width=32,
        key_value_heads=1,
        head_size=32,
        rotary_size=16,
        experts=2,
        experts_used=1,
        dense_width=32,
        indexer=indexer,
    )
    return random_model("", shape)
