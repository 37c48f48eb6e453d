"""Whole and damaged MiniMax-M3."""

from __future__ import annotations

import io

import pytest

from ggufcluster.core.gguf import GgufHeader, ValueType, read_header
from ggufcluster.core.gguf_write import GgufModel, array, uint32
from ggufcluster.core.m3_tensors import INDEXER_KEYS, check_m3
from ggufcluster.core.toy import random_model, recite_model
from ggufcluster.errors import ModelFileError
from tests.workflows.tiny_model import tiny_m3


def parts(model: GgufModel) -> tuple[GgufHeader, dict[str, tuple[int, ...]]]:
    """Return header and shapes of a model."""
    header = read_header(io.BytesIO(model.to_bytes()))
    return header, {tensor.name: tensor.shape for tensor in header.tensors}


@pytest.mark.parametrize(
    "model",
    [random_model(""), recite_model(""), tiny_m3(), tiny_m3(indexer=False)],
    ids=["random", "recite", "tiny", "without indexer"],
)
def test_whole_models_pass(model: GgufModel) -> None:
    """With and without indexer, all that the loader wants is there."""
    check_m3(*parts(model))


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_q_norm.weight",
        "blk.0.ffn_down.weight",
        "blk.2.exp_probs_b.bias",
        "blk.3.ffn_up_exps.weight",
        "blk.3.ffn_gate_shexp.weight",
    ],
)
def test_a_missing_tensor_is_named(name: str) -> None:
    """One hole anywhere in the blocks is found."""
    header, shapes = parts(tiny_m3())
    del shapes[name]
    with pytest.raises(ModelFileError, match=f"1 of .* tensors are missing, the first is {name}"):
        check_m3(header, shapes)


def test_a_wrong_shape_is_told() -> None:
    """A tensor of another size than the keys say comes from another model."""
    header, shapes = parts(tiny_m3())
    shapes["blk.1.ffn_up_exps.weight"] = (32, 32, 4)
    with pytest.raises(ModelFileError, match=r"has the shape \(32, 32, 4\) instead of \(32, 32, 2"):
        check_m3(header, shapes)


def test_a_fused_matrix_stands_for_its_parts() -> None:
    """Query, key and value in one tensor are as good as three."""
    header, shapes = parts(tiny_m3())
    for part in "qkv":
        del shapes[f"blk.1.attn_{part}.weight"]
    shapes["blk.1.attn_qkv.weight"] = (32, 128)
    check_m3(header, shapes)


def test_an_indexer_with_holes_is_refused() -> None:
    """Half an indexer is neither a sparse nor a dense model."""
    header, shapes = parts(tiny_m3())
    for layer in (2, 3):
        del shapes[f"blk.{layer}.indexer.k_norm.weight"]
    words = "2 of 12 indexer tensors are missing, the first is blk.2.indexer.k_norm.weight"
    with pytest.raises(ModelFileError, match=words):
        check_m3(header, shapes)


def test_an_indexer_under_other_names_is_refused() -> None:
    """Early conversions named it otherwise; the loader does not find it there."""
    header, shapes = parts(tiny_m3())
    renamed = {name.replace(".indexer.", ".index_"): shape for name, shape in shapes.items()}
    with pytest.raises(ModelFileError, match="12 of 12 indexer tensors are missing"):
        check_m3(header, renamed)


def test_sizes_may_be_stored_for_each_layer() -> None:
    """A list of equal numbers is as good as one; one with different numbers is refused."""
    model = tiny_m3()
    key = "minimax-m3.attention.head_count_kv"
    each = array(ValueType.UINT32, [1, 1, 1, 1])
    check_m3(*parts(GgufModel(dict(model.metadata) | {key: each}, model.tensors)))
    odd = array(ValueType.UINT32, [1, 1, 2, 1])
    with pytest.raises(ModelFileError, match="other numbers than one for all layers"):
        check_m3(*parts(GgufModel(dict(model.metadata) | {key: odd}, model.tensors)))


@pytest.mark.parametrize("key", INDEXER_KEYS)
def test_an_indexer_without_its_keys_is_refused(key: str) -> None:
    """Each of the five keys is needed, and a zero is none."""
    model = tiny_m3()
    without = {name: value for name, value in model.metadata.items() if name != key}
    for metadata in (without, without | {key: uint32(0)}):
        with pytest.raises(ModelFileError, match=f"has an indexer but no {key}"):
            check_m3(*parts(GgufModel(metadata, model.tensors)))


def test_keys_without_an_indexer_are_refused() -> None:
    """The keys alone promise tensors that are not there."""
    keys = {key: value for key, value in tiny_m3().metadata.items() if "indexer" in key}
    bare = tiny_m3(indexer=False)
    with pytest.raises(ModelFileError, match="12 of 12 indexer tensors are missing"):
        check_m3(*parts(GgufModel(dict(bare.metadata) | keys, bare.tensors)))


def test_the_loader_wants_one_indexer_head_for_each_group() -> None:
    """Another number of heads is refused with both numbers."""
    model = tiny_m3()
    metadata = dict(model.metadata) | {INDEXER_KEYS[0]: uint32(4)}
    with pytest.raises(ModelFileError, match="has 4 indexer heads for 1 groups"):
        check_m3(*parts(GgufModel(metadata, model.tensors)))
