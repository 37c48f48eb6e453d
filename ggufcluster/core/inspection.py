"""Judge a model by the headers of its files: what it is, and whether the engine can run it.

`inspect` shows this and `up` refuses by it, so that both say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.chat_template import template_kind
from ggufcluster.core.ggml_types import CPU_ONLY_TYPES, MATRIX_TYPES, TensorType
from ggufcluster.core.gguf import SkippedArray
from ggufcluster.core.gguf_cursor import plain, shown
from ggufcluster.core.m3_tensors import check_m3
from ggufcluster.core.model import M3_ARCHITECTURE, ModelFacts, ModelKind, layer_of, read_facts
from ggufcluster.core.shards import check_set
from ggufcluster.core.tensor_classes import TensorClass
from ggufcluster.errors import ModelFileError, UnsupportedTensorError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ggufcluster.core.gguf import GgufHeader, TensorInfo
    from ggufcluster.core.shards import Shard

_TEMPLATE = "tokenizer.chat_template"
_MOST_TRAIN_CONTEXT = 1 << 31
_MOST_KV_VALUES = 1 << 24
_TABLES = ("ffn_gate_tid2eid",)  # whole numbers to look up, not to multiply with


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """One chat template of a file.

    Attributes:
        name: ``default``, or what stands behind the dot in its key.
        parser: Which parser llama.cpp chooses for it: ``minimax-m3`` or ``generic``.
        characters: Its length.
        used: Whether llama-server uses it if no other one is given.
    """

    name: str
    parser: str
    characters: int
    used: bool


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """The tokenizer of a file: llama.cpp's names of model and pre-tokenizer, and its entries."""

    model: str
    pre: str
    entries: int


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file of a model; `size` is in bytes."""

    path: str
    size: int
    tensors: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the headers of a model tell.

    Attributes:
        facts: Sizes and shapes.
        files: In the order of the set.
        templates: Chat templates, the default one first.
        tokenizer: Tokenizer, or None if the file has none.
        shared_experts: Experts that each token passes through beside the chosen ones.
        warnings: What does not prevent a start but should be known.
    """

    facts: ModelFacts
    files: tuple[FileFacts, ...]
    templates: tuple[TemplateFacts, ...]
    tokenizer: TokenizerFacts | None
    shared_experts: int
    warnings: tuple[str, ...]

    @property
    def file_bytes(self) -> int:
        """Length of all files together."""
        return sum(file.size for file in self.files)

    @property
    def tensors(self) -> int:
        """Number of tensors in all files."""
        return sum(file.tensors for file in self.files)


def inspect_model(shards: Sequence[Shard]) -> Inspection:
    """Judge a model by its shards, first shard first.

    Raises:
        MixedShardsError: They are not one complete set of one conversion.
        UnsupportedTensorError: The engine cannot compute with one of the tensors.
        ModelFileError: Something every language model has is missing, or a number is absurd.
    """
    check_set(shards)
    for shard in shards:
        for tensor in shard.header.tensors:
            _check_type(tensor, shard)
    first = shards[0].header
    try:
        facts = read_facts([shard.header for shard in shards])
        _check_counts(facts, first, _shapes(shards))
    except ModelFileError as error:
        if error.path is not None:
            raise
        raise type(error)(error.reason, path=shards[0].path) from error
    return Inspection(
        facts=facts,
        files=tuple(FileFacts(s.path, s.size, len(s.header.tensors)) for s in shards),
        templates=tuple(_templates(first)),
        tokenizer=_tokenizer(first),
        shared_experts=first.optional(f"{facts.architecture}.expert_shared_count"),
        warnings=tuple(_warnings(facts, shards)),
    )


def _shapes(shards: Sequence[Shard]) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tensor.shape for shard in shards for tensor in shard.header.tensors}


def _check_type(tensor: TensorInfo, shard: Shard) -> None:
    if any(table in tensor.name for table in _TABLES):
        return
    kind = tensor.type
    if kind not in MATRIX_TYPES:
        reason = f"tensor {shown(tensor.name)} is of type {kind.name}, which the engine cannot use"
        raise UnsupportedTensorError(reason, path=shard.path)
    # Norms and biases are added and multiplied element by element, which ggml does in F32 only.
    if kind is not TensorType.F32 and _is_vector(tensor):
        reason = f"tensor {shown(tensor.name)} is of type {kind.name}; the engine wants F32 there"
        raise UnsupportedTensorError(reason, path=shard.path)


def _is_vector(tensor: TensorInfo) -> bool:
    return len(tensor.shape) <= 1 and tensor.name.endswith(("norm.weight", ".bias"))


def _check_counts(facts: ModelFacts, first: GgufHeader, shapes: dict[str, tuple[int, ...]]) -> None:
    architecture = facts.architecture
    if not 0 < facts.train_context <= _MOST_TRAIN_CONTEXT:
        raise ModelFileError(f"was made for a context of {facts.train_context:,} tokens")
    if not 0 <= facts.experts_used <= facts.experts <= 1 << 16:
        raise ModelFileError(f"uses {facts.experts_used} of {facts.experts} experts")
    if facts.dense_layers not in range(facts.layers + 1):
        raise ModelFileError(f"has {facts.dense_layers} dense layers of {facts.layers}")
    if not all(0 <= size <= _MOST_KV_VALUES for size in (*facts.kv_values, *facts.index_values)):
        raise ModelFileError("has keys and values of an absurd size")
    beyond = next((n for n in shapes if (layer_of(n) or 0) >= facts.layers), None)
    if beyond:
        raise ModelFileError(f"has tensor {shown(beyond)} but only {facts.layers} layers")
    if not any(name.startswith("blk.") for name in shapes):
        raise ModelFileError("has no tensors of its layers")
    _check_embedding(first, shapes, width=first.number(f"{architecture}.embedding_length"))
    if architecture == M3_ARCHITECTURE:
        check_m3(first, shapes)


def _check_embedding(first: GgufHeader, shapes: dict[str, tuple[int, ...]], *, width: int) -> None:
    shape = shapes.get("token_embd.weight")
    if shape is None:
        raise ModelFileError("has no token_embd.weight")
    tokenizer = _tokenizer(first)
    entries = tokenizer.entries if tokenizer else 0
    wanted = (width, entries) if entries else (width, *shape[1:])
    if shape != wanted:
        raise ModelFileError(f"token_embd.weight has the shape {shape} instead of {wanted}")


def _tokenizer(first: GgufHeader) -> TokenizerFacts | None:
    model = first.text("tokenizer.ggml.model")
    if model is None:
        return None
    tokens = first.get("tokenizer.ggml.tokens")
    entries = len(tokens) if isinstance(tokens, tuple) else 0
    if isinstance(tokens, SkippedArray):
        entries = tokens.count
    pre = first.text("tokenizer.ggml.pre") or "default"
    return TokenizerFacts(plain(model), plain(pre), entries)


def _templates(first: GgufHeader) -> Iterator[TemplateFacts]:
    for key in sorted(key for key in first.metadata if key.startswith(_TEMPLATE)):
        text = first.text(key)
        name = key.removeprefix(_TEMPLATE).removeprefix(".") or "default"
        # llama.cpp knows two names; the second one serves requests that bring tools.
        if text is not None:
            used = name in {"default", "tool_use"}
            yield TemplateFacts(plain(name), template_kind(text), len(text), used)


def _warnings(facts: ModelFacts, shards: Sequence[Shard]) -> Iterator[str]:
    if facts.kind is ModelKind.M3_DENSE:
        yield (
            f"{facts.name} has no indexer tensors: it can only run with dense attention,"
            " which is slower the longer the context; `ggufcluster graft-indexer` adds them"
        )
    for shard in shards:
        if shard.surplus:
            yield f"{shard.name}: {shard.surplus:,} bytes behind the last tensor belong to nothing"
    odd = {t.type for s in shards for t in s.header.tensors if t.type in CPU_ONLY_TYPES}
    for kind in sorted(odd):
        yield f"type {kind.name} is computed on CPUs only: no layer with it can run on a GPU"
    empty = [layer for layer, size in enumerate(facts.layer_bytes) if not size]
    if empty:
        yield f"{len(empty)} layers have no tensors, the first is layer {empty[0]}"
    if facts.kind is ModelKind.M3_SPARSE and not _indexer_is_f32(facts):
        yield "the indexer is quantised: it may choose other blocks than the original does"


def _indexer_is_f32(facts: ModelFacts) -> bool:
    uses = (
        use.type
        for group in facts.quantisation
        if group.tensor_class is TensorClass.INDEXER
        for use in group.uses
    )
    return all(kind in {TensorType.F32, TensorType.BF16, TensorType.F16} for kind in uses)
