"""Layers and keys of the toy models."""

from __future__ import annotations

import pytest

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.toy_network import ToyShape, layer_tensors, network_metadata
from ggufcluster.core.toy_weights import Weights

MUTED = ("attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp")


def names(shape: ToyShape, layer: int) -> set[str]:
    """List one layer's tensors."""
    tensors = layer_tensors(shape, Weights(1), mute=False, matrices=TensorType.F16)
    prefix = f"blk.{layer}."
    return {t.name.removeprefix(prefix) for t in tensors if t.name.startswith(prefix)}


def test_dense_layers_come_first_and_have_no_indexer() -> None:
    """The leading layers are dense; the others have experts, a shared expert and an indexer."""
    shape = ToyShape(layers=4, dense_layers=2)
    assert names(shape, 0) == names(shape, 1)
    assert names(shape, 2) == names(shape, 3)
    assert names(shape, 0) - names(shape, 2) == {
        "ffn_gate.weight",
        "ffn_up.weight",
        "ffn_down.weight",
    }
    assert names(shape, 2) - names(shape, 0) == {
        "ffn_gate_inp.weight",
        "exp_probs_b.bias",
        "ffn_gate_exps.weight",
        "ffn_up_exps.weight",
        "ffn_down_exps.weight",
        "ffn_gate_shexp.weight",
        "ffn_up_shexp.weight",
        "ffn_down_shexp.weight",
        "indexer.q_proj.weight",
        "indexer.k_proj.weight",
        "indexer.q_norm.weight",
        "indexer.k_norm.weight",
    }


def test_indexer_can_be_left_out() -> None:
    """Without indexer neither its keys nor its tensors are there, as in old conversions."""
    shape = ToyShape(indexer=False)
    assert not [key for key in network_metadata(shape, "name") if "indexer" in key]
    assert not [name for name in names(shape, 7) if "indexer" in name]
    assert [key for key in network_metadata(ToyShape(), "name") if "indexer" in key]


def test_muted_layers_end_in_zeros_and_nothing_else_does() -> None:
    """Muting makes the last matrix of each part zero and leaves all others random."""
    for tensor in layer_tensors(ToyShape(), Weights(1), mute=True, matrices=TensorType.Q8_0):
        part = tensor.name.split(".")[2]
        assert (part in MUTED) == (not any(tensor.data)), tensor.name


@pytest.mark.parametrize("layers", [1, 2])
def test_a_toy_needs_both_kinds_of_layers(layers: int) -> None:
    """Too few layers for dense and expert ones are refused."""
    with pytest.raises(ValueError, match="dense layers and, after them, expert layers"):
        ToyShape(layers=layers, dense_layers=2)


def test_widths_fill_quantized_blocks() -> None:
    """A width that Q8_0 could not store is refused."""
    with pytest.raises(ValueError, match="multiples of 32"):
        ToyShape(width=48)
