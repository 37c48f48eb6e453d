"""Write a GGUF with MiniMax-M3's true layer shapes and few layers, to time llama.cpp with.

python3 scripts/gpu/true_shape_model.py OUT.gguf [SPARSE_LAYERS]

Two dense and SPARSE_LAYERS (4) sparse layers, q4_0 matrices, 16 GB with 4. The weights are one
random tile repeated: they are for clocks, not for results.
"""

from __future__ import annotations

import os
import random
import struct
import sys
from pathlib import Path

from ggufcluster.core.ggml_types import LAYOUTS, TensorType
from ggufcluster.core.gguf_write import GgufModel, Tensor
from ggufcluster.core.toy import filled_vocabulary
from ggufcluster.core.toy_network import ToyShape, layer_tensors, network_metadata, norm_tensor
from ggufcluster.core.toy_weights import Weights

VOCABULARY_SIZE = 200_064
TILE_BLOCKS = 1 << 14


class TiledWeights(Weights):
    """Weights that repeat one random tile of q4_0 blocks, which writes at the disk's speed."""

    def uniform(self, count: int, kind: TensorType, *, reach: float, mean: float = 0.0) -> bytes:
        """Make data for `count` weights; only q4_0 is tiled."""
        if kind is not TensorType.Q4_0:
            return super().uniform(count, kind, reach=reach, mean=mean)
        scale = struct.pack("<e", reach / 8)
        tile = b"".join(scale + random.randbytes(16) for _ in range(TILE_BLOCKS))  # noqa: S311
        layout = LAYOUTS[kind]
        size = count // layout.elements * layout.bytes
        return (tile * (size // len(tile) + 1))[:size]


def true_shape(sparse_layers: int) -> ToyShape:
    """MiniMax-M3's sizes with two dense layers and as many sparse ones as asked."""
    return ToyShape(
        layers=2 + sparse_layers,
        dense_layers=2,
        width=6144,
        queries_per_group=16,
        experts=128,
        experts_used=4,
        expert_width=3072,
        dense_width=12288,
        context=1 << 20,
    )


def model(sparse_layers: int) -> GgufModel:
    """Build the whole model in memory."""
    shape, weights, kind = true_shape(sparse_layers), TiledWeights(1), TensorType.Q4_0
    table = (shape.width, VOCABULARY_SIZE)
    count = shape.width * VOCABULARY_SIZE
    tensors = [
        Tensor("token_embd.weight", table, kind, weights.uniform(count, kind, reach=1.0)),
        Tensor("output.weight", table, kind, weights.uniform(count, kind, reach=0.05)),
        norm_tensor("output_norm", shape.width, weights),
        *layer_tensors(shape, weights, mute=False, matrices=kind),
    ]
    metadata = network_metadata(shape, "true-shape-minimax-m3")
    return GgufModel(metadata | filled_vocabulary(VOCABULARY_SIZE).metadata(""), tensors)


def main() -> None:
    """Write the model that the command line asks for."""
    path = Path(sys.argv[1])
    with path.open("wb") as out:
        size = model(int(sys.argv[2]) if len(sys.argv) > 2 else 4).write_to(out)
        os.fsync(out.fileno())
    print(f"{path}: {size} bytes")


if __name__ == "__main__":
    main()
