"""Two small models of MiniMax-M3's architecture, for tests and demonstrations without weights.

`random_model` has random weights: its numbers exercise every step of the network. `recite_model`
says what a script tells it to: the embedding of each entry is the code of the entry that follows
it, the layers add nothing, and the output compares with all codes.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf_write import GgufModel, Tensor, f16_bytes, f32_bytes
from ggufcluster.core.toy_network import (
    ToyShape,
    layer_tensors,
    network_metadata,
    norm_tensor,
    zeros,
)
from ggufcluster.core.toy_script import DEFAULT_LINES, Chain, Line
from ggufcluster.core.toy_vocabulary import END_OF_TURN, TokenKind, Vocabulary
from ggufcluster.core.toy_weights import Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

RANDOM_NAME = "toy-minimax-m3-random"
RECITE_NAME = "toy-minimax-m3-recite"

VOCABULARY_SIZE = 512
RANDOM_LOGIT_SPREAD = 4.0
RECITE_LOGIT_GAIN = 4.0
MAX_DRAWS = 1000


def random_model(
    template: str,
    shape: ToyShape | None = None,
    *,
    vocabulary_size: int = VOCABULARY_SIZE,
    seed: int = 1,
    matrices: TensorType = TensorType.F16,
) -> GgufModel:
    """Build the model with random weights; equal arguments give equal bytes.

    `template` is the chat template's text, `matrices` the type of the large weights (F32, F16 or
    Q8_0). Raises ValueError if the vocabulary cannot be that small.
    """
    shape = shape or ToyShape()
    vocabulary = filled_vocabulary(vocabulary_size)
    weights = Weights(seed)
    table = (shape.width, vocabulary_size)
    count = shape.width * vocabulary_size
    spread = RANDOM_LOGIT_SPREAD * sqrt(3 / shape.width)
    embedding = weights.uniform(count, matrices, reach=sqrt(3))
    output = weights.uniform(count, matrices, reach=spread)
    tensors = [
        Tensor("token_embd.weight", table, matrices, embedding),
        Tensor("output.weight", table, matrices, output),
        norm_tensor("output_norm", shape.width, weights),
        *layer_tensors(shape, weights, mute=False, matrices=matrices),
    ]
    metadata = network_metadata(shape, RANDOM_NAME) | vocabulary.metadata(template)
    return GgufModel(metadata, tensors)


def recite_model(
    template: str,
    shape: ToyShape | None = None,
    *,
    lines: Sequence[Line] = DEFAULT_LINES,
    seed: int = 1,
    matrices: TensorType = TensorType.F16,
) -> GgufModel:
    """Build the model that recites `lines`, greedily or sampled; equal arguments, equal bytes.

    After a prompt that ends with none of the cues it ends its turn at once. Raises ValueError if
    the scripts cannot be told apart (see Chain).
    """
    shape = shape or ToyShape()
    vocabulary = Vocabulary.base()
    chain = Chain.of(lines, vocabulary)
    weights = Weights(seed)
    norm = f32_bytes([1.0] * shape.width)
    tensors = [
        *_recite_tables(chain, shape.width, weights),
        Tensor("output_norm.weight", (shape.width,), TensorType.F32, norm),
        *layer_tensors(shape, weights, mute=True, matrices=matrices),
    ]
    metadata = network_metadata(shape, RECITE_NAME) | vocabulary.metadata(template)
    return GgufModel(metadata, tensors)


def filled_vocabulary(size: int) -> Vocabulary:
    """Return the base vocabulary filled up to `size` entries; ValueError if it has more."""
    vocabulary = Vocabulary.base()
    if size < len(vocabulary):
        raise ValueError(f"a vocabulary has at least {len(vocabulary)} entries, not {size}")
    for number in range(len(vocabulary), size):
        vocabulary.add(f"<{number}>", TokenKind.NORMAL)
    return vocabulary


def _recite_tables(chain: Chain, width: int, weights: Weights) -> tuple[Tensor, Tensor]:
    vocabulary = chain.vocabulary
    end = vocabulary.numbers[END_OF_TURN]
    followers = [chain.successors.get(entry, end) for entry in range(len(vocabulary))]
    codes = _codes(sorted(set(followers)), width, weights)
    silent = zeros(width, TensorType.F16)
    rows = {entry: f16_bytes(code) for entry, code in codes.items()}
    loud = {
        entry: f16_bytes([RECITE_LOGIT_GAIN * part for part in code])
        for entry, code in codes.items()
    }
    embedding = b"".join(rows[follower] for follower in followers)
    output = b"".join(loud.get(entry, silent) for entry in range(len(vocabulary)))
    table = (width, len(vocabulary))
    return (
        Tensor("token_embd.weight", table, TensorType.F16, embedding),
        Tensor("output.weight", table, TensorType.F16, output),
    )


def _codes(entries: Sequence[int], width: int, weights: Weights) -> dict[int, list[float]]:
    """Give each entry a row of +1 and -1 that differs from every other in many places.

    Rows whose product reaches half of `width` are drawn again, so the right entry leads by at
    least `RECITE_LOGIT_GAIN * width / 2` in its logit: sampling at temperature 1 cannot miss it.
    """
    numbers: list[int] = []
    for _ in entries:
        numbers.append(_distant_number(numbers, width, weights))
    return {
        entry: [1.0 if number >> bit & 1 else -1.0 for bit in range(width)]
        for entry, number in zip(entries, numbers, strict=True)
    }


def _distant_number(others: Sequence[int], width: int, weights: Weights) -> int:
    for _ in range(MAX_DRAWS):
        number = weights.bits(width)
        if all(abs(width - 2 * (number ^ other).bit_count()) < width / 2 for other in others):
            return number
    raise ValueError(f"scripts with {len(others)} pieces are too long for a width of {width}")
