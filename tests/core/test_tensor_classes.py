"""Classes of tensors and their types."""

from __future__ import annotations

import pytest

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf import TensorInfo
from ggufcluster.core.tensor_classes import TensorClass, class_of, quantisation
from ggufcluster.core.toy import random_model


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", TensorClass.EMBEDDING),
        ("output.weight", TensorClass.OUTPUT),
        ("output_norm.weight", TensorClass.NORM),
        ("blk.0.attn_norm.weight", TensorClass.NORM),
        ("blk.0.attn_q_norm.weight", TensorClass.NORM),
        ("blk.0.attn_q.weight", TensorClass.ATTENTION),
        ("blk.0.attn_q.bias", TensorClass.ATTENTION),
        ("blk.0.ffn_gate.weight", TensorClass.DENSE),
        ("blk.3.ffn_gate_inp.weight", TensorClass.ROUTER),
        ("blk.3.exp_probs_b.bias", TensorClass.ROUTER),
        ("blk.3.ffn_down_exps.weight", TensorClass.EXPERTS),
        ("blk.3.ffn_down_shexp.weight", TensorClass.SHARED),
        ("blk.3.indexer.k_norm.weight", TensorClass.INDEXER),
        ("blk.3.indexer.q_proj.weight", TensorClass.INDEXER),
        ("blk.3.ssm_a", TensorClass.OTHER),
        ("rope_freqs.weight", TensorClass.OTHER),
    ],
)
def test_a_name_tells_the_class(name: str, expected: TensorClass) -> None:
    """Norms, experts and the indexer are told apart although their names share parts."""
    assert class_of(name) is expected


def test_no_tensor_of_the_toy_is_of_an_unknown_class() -> None:
    """Everything that MiniMax-M3 has is known by name."""
    names = [tensor.name for tensor in random_model("").tensors]
    assert [name for name in names if class_of(name) is TensorClass.OTHER] == []


def test_types_are_summed_up_for_each_class() -> None:
    """A class lists its types by bytes, with what one weight takes on average."""
    infos = [
        TensorInfo("blk.0.ffn_up_exps.weight", (32, 2), TensorType.Q4_0, 0, 36),
        TensorInfo("blk.1.ffn_up_exps.weight", (32, 2), TensorType.Q4_0, 0, 36),
        TensorInfo("blk.1.ffn_down_exps.weight", (32, 4), TensorType.Q8_0, 0, 136),
        TensorInfo("token_embd.weight", (32,), TensorType.F16, 0, 64),
    ]
    embedding, experts = quantisation(infos)
    assert embedding.tensor_class is TensorClass.EMBEDDING
    assert embedding.bits_per_weight == 16
    assert experts.tensor_class is TensorClass.EXPERTS
    assert [(use.type, use.tensors, use.size) for use in experts.uses] == [
        (TensorType.Q8_0, 1, 136),
        (TensorType.Q4_0, 2, 72),
    ]
    assert experts.size == 208
    assert experts.bits_per_weight == 8 * 208 / 256
