"""A GGUF file of a few hundred bytes that has all that a plan asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf_write import GgufModel, Tensor, string, uint32

if TYPE_CHECKING:
    from pathlib import Path


def write_model(
    path: Path,
    *,
    layers: int = 4,
    template: str | None = None,
    architecture: str = "llama",
    indexer: bool = False,
) -> Path:
    """Write a model whose tensors hold nothing of use, and return its path."""
    numbers = {
        "block_count": layers,
        "context_length": 8192,
        "embedding_length": 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    metadata = {"general.architecture": string(architecture), "general.name": string("Tiny")}
    metadata |= {f"{architecture}.{key}": uint32(value) for key, value in numbers.items()}
    if template is not None:
        metadata["tokenizer.chat_template"] = string(template)
    names = ["token_embd.weight", *(f"blk.{n}.attn_q.weight" for n in range(layers))]
    names += ["blk.0.indexer.k.weight"] if indexer else []
    names += ["output.weight"]
    tensors = [Tensor(name, (32,), TensorType.F32, bytes(128)) for name in names]
    path.write_bytes(GgufModel(metadata, tensors).to_bytes())
    return path
