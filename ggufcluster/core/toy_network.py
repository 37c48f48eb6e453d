"""Hyperparameters and layers of the toy models, in MiniMax-M3's architecture.

Key and tensor names and shapes are those that the pinned llama.cpp loads for `minimax-m3`
(src/models/minimax-m3.cpp). The loader wants one indexer head for each key/value head.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING

from ggufcluster.core.ggml_types import LAYOUTS, TensorType
from ggufcluster.core.gguf import Value, ValueType
from ggufcluster.core.gguf_write import Tensor, float32, string, uint32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.toy_weights import Weights

ARCHITECTURE = "minimax-m3"
SIGMOID_GATE = 2
ATTENTION_NORM_MEAN = 1.5


@dataclass(frozen=True, slots=True)
class ToyShape:
    """Sizes of a toy model; heads, blocks and rotary part are M3's own by default.

    `indexer=False` leaves out the sparse-attention keys and tensors, as in the GGUFs that were
    converted before llama.cpp knew them.
    """

    layers: int = 8
    dense_layers: int = 2
    width: int = 64
    key_value_heads: int = 4
    queries_per_group: int = 2
    head_size: int = 128
    rotary_size: int = 64
    experts: int = 8
    experts_used: int = 4
    expert_width: int = 32
    dense_width: int = 64
    context: int = 8192
    block_size: int = 128
    selected_blocks: int = 16
    local_blocks: int = 1
    indexer: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.dense_layers < self.layers:
            raise ValueError("a toy needs dense layers and, after them, expert layers")
        if self.width % 32 or self.expert_width % 32 or self.dense_width % 32:
            raise ValueError("widths must be multiples of 32")

    @property
    def query_heads(self) -> int:
        """Count the query heads of one layer."""
        return self.key_value_heads * self.queries_per_group


def network_metadata(shape: ToyShape, name: str) -> dict[str, Value]:
    """Describe the network in GGUF's keys."""
    numbers = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.width,
        "feed_forward_length": shape.dense_width,
        "leading_dense_block_count": shape.dense_layers,
        "attention.head_count": shape.query_heads,
        "attention.head_count_kv": shape.key_value_heads,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "rope.dimension_count": shape.rotary_size,
        "expert_count": shape.experts,
        "expert_used_count": shape.experts_used,
        "expert_shared_count": 1,
        "expert_feed_forward_length": shape.expert_width,
        "expert_gating_func": SIGMOID_GATE,
    }
    if shape.indexer:
        numbers |= _indexer_numbers(shape)
    return {
        "general.architecture": string(ARCHITECTURE),
        "general.name": string(name),
        **{f"{ARCHITECTURE}.{key}": uint32(number) for key, number in numbers.items()},
        f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon": float32(1e-6),
        f"{ARCHITECTURE}.rope.freq_base": float32(5e6),
        f"{ARCHITECTURE}.expert_weights_scale": float32(2.0),
        f"{ARCHITECTURE}.expert_weights_norm": Value(ValueType.BOOL, True),
    }


def _indexer_numbers(shape: ToyShape) -> dict[str, int]:
    return {
        "attention.indexer.head_count": shape.key_value_heads,
        "attention.indexer.key_length": shape.head_size,
        "attention.indexer.top_k": shape.selected_blocks,
        "attention.indexer.block_size": shape.block_size,
        "attention.indexer.local_blocks": shape.local_blocks,
    }


def layer_tensors(
    shape: ToyShape, weights: Weights, *, mute: bool, matrices: TensorType
) -> Iterator[Tensor]:
    """Yield the tensors of all layers.

    With `mute` the last matrix of each attention and feed-forward part is zero, so the layers
    add nothing, yet every step before it works on real numbers. `matrices` is the type of the
    large weights (F32, F16 or Q8_0); norms, routers and indexers are F32 as in real files.
    """
    build = _LayerBuilder(shape, weights, mute=mute, matrices=matrices)
    for layer in range(shape.layers):
        yield from build.attention(layer)
        if layer < shape.dense_layers:
            yield from build.dense(layer)
            continue
        yield from build.experts(layer)
        if shape.indexer:
            yield from build.indexer(layer)


@dataclass(frozen=True, slots=True)
class _LayerBuilder:
    shape: ToyShape
    weights: Weights
    mute: bool
    matrices: TensorType

    def attention(self, layer: int) -> Iterator[Tensor]:
        shape, prefix = self.shape, f"blk.{layer}."
        queries = shape.query_heads * shape.head_size
        keys = shape.key_value_heads * shape.head_size
        yield self._norm(prefix + "attn_norm", shape.width)
        yield self._matrix(prefix + "attn_q", (shape.width, queries))
        yield self._matrix(prefix + "attn_k", (shape.width, keys))
        yield self._matrix(prefix + "attn_v", (shape.width, keys))
        yield self._last(prefix + "attn_output", (queries, shape.width))
        yield self._norm(prefix + "attn_q_norm", shape.head_size, mean=ATTENTION_NORM_MEAN)
        yield self._norm(prefix + "attn_k_norm", shape.head_size, mean=ATTENTION_NORM_MEAN)
        yield self._norm(prefix + "ffn_norm", shape.width)

    def dense(self, layer: int) -> Iterator[Tensor]:
        outer, inner = self.shape.width, self.shape.dense_width
        yield self._matrix(f"blk.{layer}.ffn_gate", (outer, inner))
        yield self._matrix(f"blk.{layer}.ffn_up", (outer, inner))
        yield self._last(f"blk.{layer}.ffn_down", (inner, outer))

    def experts(self, layer: int) -> Iterator[Tensor]:
        shape, prefix = self.shape, f"blk.{layer}.ffn_"
        outer, inner, count = shape.width, shape.expert_width, shape.experts
        yield self._small(prefix + "gate_inp.weight", (outer, count))
        yield self._small(f"blk.{layer}.exp_probs_b.bias", (count,))
        yield self._matrix(prefix + "gate_exps", (outer, inner, count))
        yield self._matrix(prefix + "up_exps", (outer, inner, count))
        yield self._last(prefix + "down_exps", (inner, outer, count))
        yield self._matrix(prefix + "gate_shexp", (outer, inner))
        yield self._matrix(prefix + "up_shexp", (outer, inner))
        yield self._last(prefix + "down_shexp", (inner, outer))

    def indexer(self, layer: int) -> Iterator[Tensor]:
        shape, prefix = self.shape, f"blk.{layer}.indexer."
        heads = shape.key_value_heads * shape.head_size
        yield self._small(prefix + "q_proj.weight", (shape.width, heads))
        yield self._small(prefix + "k_proj.weight", (shape.width, shape.head_size))
        yield self._norm(prefix + "q_norm", shape.head_size)
        yield self._norm(prefix + "k_norm", shape.head_size)

    def _norm(self, name: str, size: int, *, mean: float = 1.0) -> Tensor:
        return norm_tensor(name, size, self.weights, mean=mean)

    def _small(self, name: str, shape: tuple[int, ...]) -> Tensor:
        data = self.weights.uniform(prod(shape), TensorType.F32, reach=_unit_gain(shape))
        return Tensor(name, shape, TensorType.F32, data)

    def _matrix(self, name: str, shape: tuple[int, ...]) -> Tensor:
        data = self.weights.uniform(prod(shape), self.matrices, reach=_unit_gain(shape))
        return Tensor(name + ".weight", shape, self.matrices, data)

    def _last(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if not self.mute:
            return self._matrix(name, shape)
        return Tensor(name + ".weight", shape, self.matrices, zeros(prod(shape), self.matrices))


def norm_tensor(name: str, size: int, weights: Weights, *, mean: float = 1.0) -> Tensor:
    """Make a norm's weights: uniform within a quarter of 1 around `mean`."""
    data = weights.uniform(size, TensorType.F32, reach=0.25, mean=mean)
    return Tensor(name + ".weight", (size,), TensorType.F32, data)


def zeros(count: int, kind: TensorType) -> bytes:
    """Make tensor data of zeros: in every ggml type used here they are zero bytes."""
    layout = LAYOUTS[kind]
    return bytes(count // layout.elements * layout.bytes)


def _unit_gain(shape: tuple[int, ...]) -> float:
    # Uniform numbers of this reach have the variance 1/n that keeps a row's output at unit size.
    return sqrt(3 / shape[0])
