"""The original of a toy."""

from __future__ import annotations

import json

from ggufcluster.core.m3_tensors import INDEXER_KEYS
from ggufcluster.core.safetensors import header_length, read_tensors, to_f32
from ggufcluster.core.toy_original import INDEX, original_files, without_indexer
from tests.workflows.tiny_model import tiny_m3


def test_the_dense_toy_has_the_same_weights() -> None:
    """Nothing but the indexer is left out."""
    whole, dense = tiny_m3(), without_indexer(tiny_m3())
    assert whole.metadata.keys() - dense.metadata.keys() == set(INDEXER_KEYS)
    left = [tensor for tensor in whole.tensors if ".indexer." not in tensor.name]
    assert list(dense.tensors) == left
    assert len(left) == len(whole.tensors) - 12


def test_the_original_gives_back_the_toys_numbers() -> None:
    """What the files hold becomes, once converted, what the toy holds, to the last bit."""
    files = original_files(tiny_m3(), prefix="")
    places = json.loads(files[INDEX])["weight_map"]
    toy = {tensor.name: tensor.data for tensor in tiny_m3().tensors}
    assert len(places) == 12 + 4
    for name, file in places.items():
        data = files[file]
        length = header_length(data, path=file)
        stored = read_tensors(data[8 : 8 + length], keep=name.__eq__, path=file)[name]
        ours = name.replace("model.layers", "blk").replace("self_attn.index_", "indexer.")
        ours = ours.replace("input_layernorm", "attn_norm")
        numbers = data[stored.start : stored.start + stored.size]
        is_norm = ours.endswith("norm.weight")
        assert to_f32(numbers, stored.type, plus_one=is_norm) == toy[ours]
