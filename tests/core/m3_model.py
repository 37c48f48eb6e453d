"""The header of a MiniMax-M3 in its true shape, as facts, without its 200 GiB."""

from __future__ import annotations

from ggufcluster.core.ggml_types import TensorType, tensor_bytes
from ggufcluster.core.gguf import GgufHeader, TensorInfo, Value, ValueType
from ggufcluster.core.model import ModelFacts, read_facts

WIDTH, VOCABULARY, HEADS, KEY_HEADS, HEAD = 6144, 200_064, 64, 4, 128
EXPERTS, EXPERT_WIDTH, DENSE_WIDTH, DENSE_LAYERS = 128, 3072, 12_288, 3

_NUMBERS = {
    "context_length": 1 << 20,
    "embedding_length": WIDTH,
    "feed_forward_length": DENSE_WIDTH,
    "leading_dense_block_count": DENSE_LAYERS,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KEY_HEADS,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "expert_count": EXPERTS,
    "expert_used_count": 4,
    "expert_shared_count": 1,
    "expert_feed_forward_length": EXPERT_WIDTH,
}
_INDEXER = {
    "attention.indexer.head_count": KEY_HEADS,
    "attention.indexer.key_length": HEAD,
    "attention.indexer.top_k": 16,
    "attention.indexer.block_size": 128,
    "attention.indexer.local_blocks": 1,
}


def m3_facts(
    *, layers: int = 60, indexer: bool = True, matrices: TensorType = TensorType.IQ4_XS
) -> ModelFacts:
    """Return the facts of a model with so many layers whose matrices are of one type."""
    numbers = _NUMBERS | {"block_count": layers} | (_INDEXER if indexer else {})
    keys = {"general.architecture": Value(ValueType.STRING, "minimax-m3")}
    keys["general.name"] = Value(ValueType.STRING, "MiniMax-M3")
    keys |= {f"minimax-m3.{key}": Value(ValueType.UINT32, n) for key, n in numbers.items()}
    table: tuple[int, ...] = (WIDTH, VOCABULARY)
    shapes = {"token_embd.weight": table, "output.weight": table}
    for layer in range(layers):
        inside = _attention() | (_dense() if layer < DENSE_LAYERS else _experts(indexer=indexer))
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in inside.items()}
    tensors = tuple(_tensor(name, shape, matrices) for name, shape in shapes.items())
    return read_facts([GgufHeader(3, keys, tensors, 32, 0, 0)])


def _attention() -> dict[str, tuple[int, ...]]:
    return {
        "attn_q": (WIDTH, HEADS * HEAD),
        "attn_k": (WIDTH, KEY_HEADS * HEAD),
        "attn_v": (WIDTH, KEY_HEADS * HEAD),
        "attn_output": (HEADS * HEAD, WIDTH),
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
    }


def _dense() -> dict[str, tuple[int, ...]]:
    return {
        "ffn_gate": (WIDTH, DENSE_WIDTH),
        "ffn_up": (WIDTH, DENSE_WIDTH),
        "ffn_down": (DENSE_WIDTH, WIDTH),
    }


def _experts(*, indexer: bool) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        "ffn_gate_inp": (WIDTH, EXPERTS),
        "ffn_gate_exps": (WIDTH, EXPERT_WIDTH, EXPERTS),
        "ffn_up_exps": (WIDTH, EXPERT_WIDTH, EXPERTS),
        "ffn_down_exps": (EXPERT_WIDTH, WIDTH, EXPERTS),
        "ffn_gate_shexp": (WIDTH, EXPERT_WIDTH),
        "ffn_up_shexp": (WIDTH, EXPERT_WIDTH),
        "ffn_down_shexp": (EXPERT_WIDTH, WIDTH),
    }
    if indexer:
        found |= {"indexer.q_proj": (WIDTH, KEY_HEADS * HEAD), "indexer.k_proj": (WIDTH, HEAD)}
    return found


def _tensor(name: str, shape: tuple[int, ...], matrices: TensorType) -> TensorInfo:
    small = len(shape) == 1 or "indexer" in name or "gate_inp" in name
    kind = TensorType.F32 if small else matrices
    return TensorInfo(name, shape, kind, 0, tensor_bytes(shape, kind))
