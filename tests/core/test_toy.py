"""The toy models as files and as networks."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf import GgufHeader, read_header
from ggufcluster.core.toy import random_model, recite_model
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.core.toy_script import DEFAULT_LINES, Line
from ggufcluster.core.toy_vocabulary import BYTE_LETTERS

if TYPE_CHECKING:
    from ggufcluster.core.gguf_write import GgufModel, Tensor

SMALL = ToyShape(layers=4, dense_layers=1, experts=4, experts_used=2)
LETTER_BYTES = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}


def header_of(model: GgufModel) -> GgufHeader:
    """Write a model and read its header."""
    data = model.to_bytes()
    return read_header(io.BytesIO(data), size=len(data))


def rows(tensor: Tensor) -> list[tuple[float, ...]]:
    """Unpack an F16 matrix."""
    width, count = tensor.shape
    numbers = struct.unpack(f"<{width * count}e", tensor.data)
    return [numbers[start : start + width] for start in range(0, width * count, width)]


class Reciter:
    """Decodes with embedding and output only, which is all that a reciting toy consists of."""

    def __init__(self, model: GgufModel) -> None:
        tensors = {tensor.name: tensor for tensor in model.tensors}
        self.embedding = rows(tensors["token_embd.weight"])
        self.output = rows(tensors["output.weight"])
        stored = model.metadata["tokenizer.ggml.tokens"].value
        assert isinstance(stored, tuple)
        self.entries = [str(entry) for entry in stored]

    def lead(self, entry: int) -> tuple[int, float]:
        """Return the likeliest next entry and by how much its logit leads."""
        state = self.embedding[entry]
        logits = [sum(map(float.__mul__, state, row)) for row in self.output]
        second, first = sorted(logits)[-2:]
        return logits.index(first), first - second

    def say(self, cue: str) -> str:
        """Decode from a cue to the end of the turn."""
        said = ""
        entry, lead = self.lead(self.entries.index(cue))
        while self.entries[entry] != "[e~[":
            said += self.entries[entry]
            entry, next_lead = self.lead(entry)
            lead = min(lead, next_lead)
        assert lead > 100
        return bytes(LETTER_BYTES[letter] for letter in said).decode()


def test_recite_says_every_line_with_certainty() -> None:
    """From each cue the network itself decodes the script, each step leading by 100 or more."""
    reciter = Reciter(recite_model("template", SMALL))
    for line in DEFAULT_LINES:
        assert reciter.say(line.cue) == line.text


def test_recite_ends_the_turn_after_any_other_prompt() -> None:
    """A prompt that ends with no cue gets an empty answer."""
    reciter = Reciter(recite_model("template", SMALL))
    for entry in [*range(256), reciter.entries.index("]~b]")]:
        following, lead = reciter.lead(entry)
        assert reciter.entries[following] == "[e~["
        assert lead > 100


def test_long_scripts_stay_certain() -> None:
    """A script of a thousand different words is recited without a slip."""
    text = " ".join(f"word{number}" for number in range(1000))
    model = recite_model("template", SMALL, lines=[Line("cue", text)])
    reciter = Reciter(model)
    start = reciter.entries.index("cue")
    following, lead = reciter.lead(start)
    assert (reciter.entries[following], lead > 100) == ("word0", True)
    last = reciter.entries.index("Ġword999")
    assert reciter.entries[reciter.lead(last)[0]] == "[e~["


def test_scripts_beyond_the_width_are_refused() -> None:
    """A script that a narrow network cannot tell apart is an error, not a stammer."""
    text = " ".join(f"word{number}" for number in range(3000))
    shape = ToyShape(width=32)
    with pytest.raises(ValueError, match="too long for a width of 32"):
        recite_model("template", shape, lines=[Line("cue", text)])


@pytest.mark.parametrize("build", [random_model, recite_model])
def test_equal_arguments_give_equal_bytes(build: object) -> None:
    """A toy is the same file each time, and another one for another seed."""
    assert callable(build)
    first, again, other = (build("template", SMALL, seed=seed).to_bytes() for seed in (7, 7, 8))
    assert first == again != other


def test_random_weights_come_in_three_types() -> None:
    """The large weights have the type that was asked for; norms and indexers stay F32."""
    for kind in (TensorType.F32, TensorType.F16, TensorType.Q8_0):
        header = header_of(random_model("template", SMALL, matrices=kind))
        types = {info.name: info.type for info in header.tensors}
        assert types["blk.1.attn_q.weight"] is kind
        assert types["blk.1.indexer.q_proj.weight"] is TensorType.F32
        assert types["output_norm.weight"] is TensorType.F32


def test_shape_is_written_in_the_metadata() -> None:
    """Layers, heads and blocks are found under MiniMax-M3's keys."""
    header = header_of(random_model("the template", ToyShape(layers=6), vocabulary_size=300))
    assert header.get("general.architecture") == "minimax-m3"
    assert header.get("minimax-m3.block_count") == 6
    assert header.get("minimax-m3.attention.head_count") == 8
    assert header.get("minimax-m3.attention.head_count_kv") == 4
    assert header.get("minimax-m3.attention.indexer.head_count") == 4
    assert header.get("minimax-m3.attention.indexer.block_size") == 128
    assert header.get("minimax-m3.attention.indexer.top_k") == 16
    assert header.get("tokenizer.chat_template") == "the template"
    embedding = header.tensor("token_embd.weight")
    assert embedding is not None
    assert embedding.shape == (64, 300)


def test_vocabulary_cannot_be_smaller_than_its_base() -> None:
    """A vocabulary without room for all bytes and markers is refused."""
    with pytest.raises(ValueError, match="at least 264 entries, not 200"):
        random_model("template", vocabulary_size=200)


def test_default_toys_are_small() -> None:
    """Each default toy takes less than 8 MB."""
    for model in (random_model("template"), recite_model("template")):
        assert len(model.to_bytes()) < 8_000_000
