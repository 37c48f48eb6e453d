"""Decisions about a graft."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ggufcluster.core.gguf import Value, ValueType, read_header
from ggufcluster.core.gguf_write import GgufModel, head, uint32
from ggufcluster.core.graft import (
    first_pairs,
    indexer_numbers,
    indexer_tensors,
    new_names,
    original_names,
    require_graftable,
    weight_files,
)
from ggufcluster.core.inspection import inspect_model
from ggufcluster.core.m3_tensors import INDEXER_KEYS, read_shape
from ggufcluster.core.shards import Shard
from ggufcluster.core.toy_original import original_files, without_indexer
from ggufcluster.errors import GraftError
from tests.workflows.tiny_model import tiny, tiny_m3

CONFIG: dict[str, Any] = json.loads(original_files(tiny_m3())["config.json"])
SECTION: dict[str, Any] = CONFIG["text_config"]["sparse_attention_config"]
NUMBERS = {"head_count": 1, "key_length": 32, "top_k": 16, "block_size": 128, "local_blocks": 1}


def numbers(section: object) -> dict[str, int]:
    """Read the numbers of a config with this section."""
    config = json.dumps({"sparse_attention_config": section}).encode()
    return indexer_numbers(config, path="config.json")


def test_numbers_come_from_the_config() -> None:
    """They stand under the text model's part, or at the top where there is no such part."""
    assert indexer_numbers(json.dumps(CONFIG).encode(), path="c") == NUMBERS
    assert numbers(SECTION) == NUMBERS


@pytest.mark.parametrize("odd", [None, 0, -1, "16", 1.5, 1 << 30])
def test_odd_numbers_are_told(odd: object) -> None:
    """A number that is missing or cannot be right is named."""
    with pytest.raises(GraftError, match="for sparse_topk_blocks"):
        numbers(SECTION | {"sparse_topk_blocks": odd})


def test_an_original_that_the_engine_cannot_follow_is_refused() -> None:
    """Blocks that are always selected at the beginning are not known there."""
    with pytest.raises(GraftError, match="first blocks"):
        numbers(SECTION | {"sparse_init_block": 1})


@pytest.mark.parametrize("config", [b"{", b"[]", b"{}", b'{"sparse_attention_config": 3}'])
def test_other_configs_are_told(config: bytes) -> None:
    """What is no config of a sparse model is named with its file."""
    with pytest.raises(GraftError, match="the-file"):
        indexer_numbers(config, path="the-file")


def test_names_of_the_original_are_found_behind_any_prefix() -> None:
    """Only the indexer and the norm before attention are of interest."""
    names = [
        "language_model.model.layers.3.self_attn.index_q_proj.weight",
        "model.layers.10.self_attn.index_k_norm.weight",
        "model.layers.10.input_layernorm.weight",
        "model.layers.10.self_attn.q_proj.weight",
        "model.layers.10.self_attn.index_v_proj.weight",
        "model.embed_tokens.weight",
    ]
    assert original_names(names) == {
        "blk.3.indexer.q_proj.weight": names[0],
        "blk.10.indexer.k_norm.weight": names[1],
        "blk.10.attn_norm.weight": names[2],
    }


@pytest.mark.parametrize("file", ["../x.safetensors", "/x.safetensors", "a/b.safetensors", "x.bin"])
def test_files_outside_the_folder_are_refused(file: str) -> None:
    """An index that points elsewhere is not followed."""
    with pytest.raises(GraftError, match="names the file"):
        weight_files(json.dumps({"weight_map": {"t": file}}).encode(), path="i")


def test_an_index_without_a_map_is_told() -> None:
    """Another JSON file is no index."""
    with pytest.raises(GraftError, match="no weight_map"):
        weight_files(b'{"metadata": {}}', path="i")


def test_the_new_set_has_names_of_its_own() -> None:
    """One shard more, with a word in its name that tells it from the old set."""
    assert new_names("m.gguf") == (
        "m-indexer-00001-of-00002.gguf",
        "m-indexer-00002-of-00002.gguf",
    )
    assert new_names("m-00002-of-00002.gguf")[0] == "m-indexer-00001-of-00003.gguf"


def test_the_new_shard_holds_what_the_loader_wants() -> None:
    """Names and shapes are those of a toy with indexer."""
    model = tiny_m3()
    shape = read_shape(read_header(io.BytesIO(model.to_bytes())))
    wanted = {(t.name, t.shape, t.type) for t in model.tensors if ".indexer." in t.name}
    assert {(t.name, t.shape, t.type) for t in indexer_tensors(shape)} == wanted


def test_old_keys_are_kept_byte_for_byte() -> None:
    """All keys of the old shard come first, unchanged; those of sets and indexers are replaced."""
    extra = {"split.no": uint32(0), "split.count": uint32(1), INDEXER_KEYS[0]: uint32(9)}
    odd = {"odd": Value(ValueType.ARRAY, ("\udcff", "b"), ValueType.STRING)}
    model = without_indexer(tiny_m3())
    old = GgufModel({**extra, **model.metadata, **odd}, [])
    data = old.to_bytes()
    header = read_header(io.BytesIO(data), keep_arrays_up_to=1 << 20)
    pairs = first_pairs(header, data, NUMBERS, shards=3, tensors=99)
    found = read_header(io.BytesIO(head(pairs, [], 32)), keep_arrays_up_to=1 << 20).metadata
    assert {key: found[key].value for key in INDEXER_KEYS} == {
        key: NUMBERS[key.rpartition(".")[2]] for key in INDEXER_KEYS
    }
    assert (found["split.no"].value, found["split.count"].value) == (0, 4)
    assert found["split.tensors.count"].value == 99
    assert found["ggufcluster.graft.shards"].value == 3
    assert {key: found[key] for key in model.metadata} == {
        key: header.metadata[key] for key in model.metadata
    }
    assert found["odd"] == odd["odd"]


@pytest.mark.parametrize(
    ("model", "words"), [(tiny_m3(), "has its indexer already"), (tiny(), "no MiniMax-M3")]
)
def test_only_a_dense_m3_is_grafted(model: GgufModel, words: str) -> None:
    """Other models are told why not."""
    data = model.to_bytes()
    found = inspect_model([Shard("m", len(data), read_header(io.BytesIO(data)))])
    with pytest.raises(GraftError, match=words):
        require_graftable(found, path="m")
