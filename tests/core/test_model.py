"""Facts of a model from its shards."""

from __future__ import annotations

import pytest

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf import GgufHeader, TensorInfo, Value, ValueType
from ggufcluster.core.model import ModelKind, read_facts, shard_names
from ggufcluster.errors import ModelFileError

KEYS: dict[str, str | int | tuple[int, ...]] = {
    "general.architecture": "minimax-m3",
    "general.name": "Tiny",
    "minimax-m3.block_count": 2,
    "minimax-m3.context_length": 4096,
    "minimax-m3.embedding_length": 64,
    "minimax-m3.attention.head_count": 4,
    "minimax-m3.attention.head_count_kv": 2,
    "tokenizer.chat_template": "{{ messages }}",
}
TENSORS = {
    "token_embd.weight": 1000,
    "blk.0.attn_q.weight": 10,
    "blk.0.ffn_up.weight": 20,
    "blk.1.attn_q.weight": 40,
    "output.weight": 500,
    "output_norm.weight": 7,
}


def header(keys: dict[str, str | int | tuple[int, ...]], tensors: dict[str, int]) -> GgufHeader:
    """Make the header of a file with these keys and tensor sizes in bytes."""
    infos = (TensorInfo(name, (size,), TensorType.F32, 0, size) for name, size in tensors.items())
    values = {key: Value(ValueType.UINT32, value) for key, value in keys.items()}
    return GgufHeader(3, values, tuple(infos), 32, 0, 0)


def test_sizes_are_gathered_over_all_shards() -> None:
    """Weights count to their block, the embedding or the output, whichever shard holds them."""
    facts = read_facts([header(KEYS, TENSORS), header({}, {"blk.1.ffn_up.weight": 80})])
    assert (facts.name, facts.architecture, facts.layers) == ("Tiny", "minimax-m3", 2)
    assert facts.layer_bytes == (30, 120)
    assert facts.output_bytes == 507
    assert facts.embedding_bytes == 1000
    assert facts.weight_bytes == 1657
    assert facts.train_context == 4096
    assert facts.template == "{{ messages }}"
    assert not facts.has_indexer


def test_a_tied_model_needs_its_embedding_twice() -> None:
    """Without an output head of its own, the copy of the embedding counts to the last device."""
    tied = {name: size for name, size in TENSORS.items() if name != "output.weight"}
    assert read_facts([header(KEYS, tied)]).output_bytes == 1007


def test_the_kv_cache_follows_heads_and_widths() -> None:
    """Keys and values of every KV head count, with the head's width from the embedding."""
    facts = read_facts([header(KEYS, TENSORS)])
    assert facts.kv_values == (2 * (16 + 16),) * 2
    assert facts.kv_bytes(0, context=100, kv_type="f16") == 64 * 2 * 100
    assert facts.kv_bytes(0, context=32, kv_type="q8_0") == 64 * 34


def test_widths_and_heads_may_be_given_apart() -> None:
    """Key and value widths of their own and a number of heads for each block are taken."""
    keys = KEYS | {
        "minimax-m3.attention.key_length": 128,
        "minimax-m3.attention.value_length": 64,
        "minimax-m3.attention.head_count_kv": (1, 3),
    }
    assert read_facts([header(keys, TENSORS)]).kv_values == (192, 576)


def test_the_indexer_adds_to_the_cache() -> None:
    """Blocks with an indexer keep its keys as well, in f16 whatever the type of the others."""
    keys = KEYS | {"minimax-m3.attention.indexer.key_length": 128}
    facts = read_facts([header(keys, TENSORS | {"blk.1.indexer.k_proj.weight": 1})])
    assert facts.has_indexer
    assert facts.kv_values == (64,) * 2
    assert facts.index_values == (0, 128)
    assert facts.kv_bytes(0, context=32, kv_type="q8_0") == 64 * 34
    assert facts.kv_bytes(1, context=32, kv_type="q8_0") == 64 * 34 + 32 * 128 * 2
    assert facts.kv_token_bytes(1, kv_type="f16") == 64 * 2 + 128 * 2


@pytest.mark.parametrize(
    ("architecture", "indexer", "kind"),
    [
        ("minimax-m3", True, ModelKind.M3_SPARSE),
        ("minimax-m3", False, ModelKind.M3_DENSE),
        ("glm-dsa", True, ModelKind.OTHER),
    ],
)
def test_the_kind_tells_how_m3_can_run(
    architecture: str, *, indexer: bool, kind: ModelKind
) -> None:
    """Only MiniMax-M3 is sparse or dense; an indexer of another architecture is its own affair."""
    keys: dict[str, str | int | tuple[int, ...]] = {
        key.replace("minimax-m3", architecture): value for key, value in KEYS.items()
    }
    keys["general.architecture"] = architecture
    extra = {"blk.1.indexer.k_proj.weight": 1} if indexer else {}
    facts = read_facts([header(keys, TENSORS | extra)])
    assert facts.has_indexer is indexer
    assert facts.kind is kind


def test_a_token_reads_its_own_experts_only() -> None:
    """A quarter of the experts counts with a quarter of their bytes; the embedding with none."""
    keys = KEYS | {"minimax-m3.expert_count": 8, "minimax-m3.expert_used_count": 2}
    facts = read_facts([header(keys, TENSORS | {"blk.1.ffn_up_exps.weight": 400})])
    assert (facts.experts, facts.experts_used) == (8, 2)
    assert facts.bytes_per_token == 30 + 40 + 100 + 507
    assert read_facts([header(KEYS, TENSORS)]).bytes_per_token == 30 + 40 + 507


def test_other_kinds_of_gguf_are_named() -> None:
    """A vision projector and an adapter are told apart from a language model."""
    projector = KEYS | {"general.architecture": "clip"}
    with pytest.raises(ModelFileError, match="is a vision projector"):
        read_facts([header(projector, TENSORS)])
    with pytest.raises(ModelFileError, match=r"general\.type is 'adapter'"):
        read_facts([header(KEYS | {"general.type": "adapter"}, TENSORS)])


@pytest.mark.parametrize("key", ["general.architecture", "minimax-m3.block_count"])
def test_a_model_without_the_basics_is_refused(key: str) -> None:
    """A file that is no language model is named as such."""
    keys = {name: value for name, value in KEYS.items() if name != key}
    with pytest.raises(ModelFileError, match=key.replace(".", r"\.")):
        read_facts([header(keys, TENSORS)])


def test_names_from_the_file_do_no_harm() -> None:
    """A name with terminal commands loses them; an architecture with some is refused."""
    name = read_facts([header(KEYS | {"general.name": "M\x1b[2J" + "3" * 500}, TENSORS)]).name
    assert name.startswith("M?[2J33")
    assert len(name) == 80
    with pytest.raises(ModelFileError, match=r"is 'x\\x1b\[2J'"):
        read_facts([header(KEYS | {"general.architecture": "x\x1b[2J"}, TENSORS)])


@pytest.mark.parametrize("count", [0, 1 << 31])
def test_an_absurd_number_of_layers_is_refused(count: int) -> None:
    """A damaged count neither passes nor fills the memory."""
    with pytest.raises(ModelFileError, match=f"has {count} layers"):
        read_facts([header(KEYS | {"minimax-m3.block_count": count}, TENSORS)])


def test_shards_are_named_from_any_of_them() -> None:
    """A part of a set names the whole set in order; any other file stands alone."""
    assert shard_names("m-00002-of-00003.gguf") == (
        "m-00001-of-00003.gguf",
        "m-00002-of-00003.gguf",
        "m-00003-of-00003.gguf",
    )
    assert shard_names("m-2-of-3.gguf") == ("m-2-of-3.gguf",)


@pytest.mark.parametrize("place", ["00000-of-00002", "00003-of-00002", "00001-of-99999"])
def test_a_name_with_an_odd_place_stands_alone(place: str) -> None:
    """A number beyond the count, or a count beyond reason, makes no list of shards."""
    assert shard_names(f"m-{place}.gguf") == (f"m-{place}.gguf",)
