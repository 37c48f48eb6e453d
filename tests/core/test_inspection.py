"""Judging models by their headers."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggufcluster.core.ggml_types import CPU_ONLY_TYPES, MATRIX_TYPES, TensorType, tensor_bytes
from ggufcluster.core.gguf import GgufHeader, Value, ValueType, read_header
from ggufcluster.core.gguf_write import GgufModel, Tensor, array, string, uint32
from ggufcluster.core.inspection import Inspection, TemplateFacts, inspect_model
from ggufcluster.core.model import ModelKind
from ggufcluster.core.shards import Shard
from ggufcluster.errors import MixedShardsError, ModelFileError, UnsupportedTensorError
from tests.core.test_gguf_fuzz import FUZZ, values
from tests.workflows.tiny_model import tiny, tiny_m3


def judged(model: GgufModel, *, surplus: int = 0) -> Inspection:
    """Judge a model in one file."""
    data = model.to_bytes()
    return inspect_model([Shard("/m.gguf", len(data) + surplus, read_header(io.BytesIO(data)))])


def with_type(model: GgufModel, name: str, kind: TensorType) -> GgufModel:
    """Store one tensor in another type; rows of 256 fill the blocks of all types."""
    changed = []
    for tensor in model.tensors:
        shape = (256, *tensor.shape[1:]) if tensor.name == name else tensor.shape
        new = kind if tensor.name == name else tensor.type
        changed.append(Tensor(tensor.name, shape, new, bytes(tensor_bytes(shape, new))))
    return GgufModel(model.metadata, changed)


def with_keys(model: GgufModel, keys: dict[str, Value]) -> GgufModel:
    """Change some keys."""
    return GgufModel(dict(model.metadata) | keys, model.tensors)


def test_a_sparse_m3_is_described() -> None:
    """Kind, sizes, experts, tokenizer and files come from the header."""
    found = judged(tiny_m3())
    assert found.facts.kind is ModelKind.M3_SPARSE
    assert (found.facts.layers, found.facts.dense_layers) == (4, 1)
    assert (found.facts.experts, found.facts.experts_used, found.shared_experts) == (2, 1, 1)
    assert found.facts.index_values == (0, 32, 32, 32)
    assert found.tokenizer is not None
    assert found.tokenizer.entries == 512
    assert found.tensors == len(tiny_m3().tensors)
    assert found.file_bytes == len(tiny_m3().to_bytes())
    assert found.warnings == ()


def test_an_m3_without_indexer_is_warned_of() -> None:
    """It can run dense only, which is no error."""
    found = judged(tiny_m3(indexer=False))
    assert found.facts.kind is ModelKind.M3_DENSE
    assert "can only run with dense attention" in found.warnings[0]


@pytest.mark.parametrize("kind", sorted(set(TensorType) - MATRIX_TYPES))
def test_types_that_would_crash_the_engine_are_refused(kind: TensorType) -> None:
    """A matrix of float64 or of another type without kernels is named with its file."""
    with pytest.raises(UnsupportedTensorError, match=kind.name) as caught:
        judged(with_type(tiny(), "blk.1.attn_q.weight", kind))
    assert "blk.1.attn_q.weight" in str(caught.value)
    assert caught.value.path == "/m.gguf"


@pytest.mark.parametrize("kind", sorted(MATRIX_TYPES))
def test_types_that_the_engine_has_pass(kind: TensorType) -> None:
    """Matrices may be of each of them; those without CUDA kernels are warned of."""
    found = judged(with_type(tiny(), "blk.1.attn_q.weight", kind))
    assert [kind.name in warning for warning in found.warnings] == [True] * (kind in CPU_ONLY_TYPES)


@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "blk.1.exp_probs_b.bias"])
def test_norms_and_biases_are_f32(name: str) -> None:
    """In any other type the engine would abort at the first token."""
    extra = Tensor(name, (32,), TensorType.F16, bytes(64))
    with pytest.raises(UnsupportedTensorError, match="wants F32 there"):
        judged(GgufModel(tiny().metadata, [*tiny().tensors, extra]))


def test_a_table_of_whole_numbers_is_no_matrix() -> None:
    """What is looked up, not multiplied with, may be whole numbers."""
    table = Tensor("blk.0.ffn_gate_tid2eid.weight", (2, 2), TensorType.I32, bytes(16))
    assert judged(GgufModel(tiny().metadata, [*tiny().tensors, table])).tensors == 7


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"llama.context_length": uint32(0)}, "context of 0 tokens"),
        ({"llama.context_length": Value(ValueType.INT64, -5)}, "context of -5 tokens"),
        ({"llama.context_length": Value(ValueType.UINT64, 2**63)}, "context of 9,223,"),
        ({"llama.expert_used_count": uint32(4)}, "uses 4 of 0 experts"),
        ({"llama.expert_count": Value(ValueType.INT32, -1)}, "uses 0 of -1 experts"),
        ({"llama.leading_dense_block_count": uint32(9)}, "9 dense layers of 4"),
        ({"llama.attention.value_length": Value(ValueType.INT8, -33)}, "of an absurd size"),
        ({"llama.attention.key_length": uint32(2**31)}, "of an absurd size"),
        ({"llama.block_count": uint32(3)}, "has tensor 'blk.3.attn_q.weight' but only 3 layers"),
        ({"llama.embedding_length": uint32(63)}, r"shape \(64, 2\) instead of \(63, 2\)"),
        ({"llama.embedding_length": string("64")}, "has no llama.embedding_length"),
    ],
)
def test_absurd_numbers_are_refused(keys: dict[str, Value], words: str) -> None:
    """Counts that contradict each other or reason are told."""
    with pytest.raises(ModelFileError, match=words) as caught:
        judged(with_keys(tiny(), keys))
    assert caught.value.path == "/m.gguf"


def test_the_vocabulary_must_fit_the_embedding() -> None:
    """One row for each token, no more and no fewer."""
    keys = {
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.tokens": array(ValueType.STRING, ["a", "b", "c"]),
    }
    with pytest.raises(ModelFileError, match=r"shape \(64, 2\) instead of \(64, 3\)"):
        judged(with_keys(tiny(), keys))


def test_files_without_layers_or_embedding_are_refused() -> None:
    """A part of a model alone is no model."""
    embedding, *layers, output = tiny().tensors
    with pytest.raises(ModelFileError, match=r"has no token_embd\.weight"):
        judged(GgufModel(tiny().metadata, [*layers, output]))
    with pytest.raises(ModelFileError, match="no tensors of its layers"):
        judged(GgufModel(tiny().metadata, [embedding, output]))


def test_a_damaged_m3_is_refused_with_its_file() -> None:
    """Half an indexer is told with the name of the file."""
    model = tiny_m3()
    damaged = GgufModel(model.metadata, model.tensors[:-1])
    with pytest.raises(ModelFileError, match=r"/m\.gguf: 1 of 12 indexer tensors") as caught:
        judged(damaged)
    assert not isinstance(caught.value, MixedShardsError)


def test_templates_are_listed_with_their_parser() -> None:
    """The default and the one for tools are used; others are not; each has its parser."""
    keys = {
        "tokenizer.chat_template": string("]<]minimax[>[ <tool_call> <invoke name="),
        "tokenizer.chat_template.tool_use": string("plain"),
        "tokenizer.chat_template.rag": string(""),
        "tokenizer.chat_templates": array(ValueType.STRING, ["tool_use", "rag"]),
    }
    assert judged(with_keys(tiny(), keys)).templates == (
        TemplateFacts("default", "minimax-m3", 39, used=True),
        TemplateFacts("rag", "none", 0, used=False),
        TemplateFacts("tool_use", "generic", 5, used=True),
    )
    assert judged(tiny()).templates == ()


def test_bytes_behind_the_end_are_warned_of() -> None:
    """Two files written into one are noticed."""
    assert "1,000 bytes behind the last tensor" in judged(tiny(), surplus=1000).warnings[0]


def test_layers_without_tensors_are_warned_of() -> None:
    """Some architectures have such layers, so they are no error."""
    model = with_keys(tiny(2), {"llama.block_count": uint32(4)})
    assert judged(model).warnings == ("2 layers have no tensors, the first is layer 2",)


def test_a_quantised_indexer_is_warned_of() -> None:
    """It runs, and may choose other blocks."""
    model = tiny_m3()
    changed = [
        Tensor(t.name, t.shape, TensorType.Q8_0, bytes(tensor_bytes(t.shape, TensorType.Q8_0)))
        if t.name.endswith("indexer.q_proj.weight")
        else t
        for t in model.tensors
    ]
    assert "indexer is quantised" in judged(GgufModel(model.metadata, changed)).warnings[0]


M3 = tiny_m3()
M3_HEADER = read_header(io.BytesIO(M3.to_bytes()))
KEYS = [key for key in M3.metadata if not key.startswith("tokenizer.ggml")]


@FUZZ
@given(st.dictionaries(st.sampled_from(KEYS), values(), min_size=1, max_size=3))
def test_any_values_of_the_keys(changes: dict[str, Any]) -> None:
    """Keys of any type and size lead to an answer or to an error of ours, never to another."""
    header: GgufHeader = replace(M3_HEADER, metadata=dict(M3_HEADER.metadata) | changes)
    try:
        found = inspect_model([Shard("m.gguf", 1 << 20, header)])
    except ModelFileError:
        return
    assert found.facts.layers == 4
    assert all(value >= 0 for value in found.facts.kv_values)
