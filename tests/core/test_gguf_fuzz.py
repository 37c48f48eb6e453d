"""Headers that nobody thought of: whatever the bytes, an answer or an error of ours."""

from __future__ import annotations

import io
import struct
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ggufcluster.core.ggml_types import LAYOUTS, TensorType, tensor_bytes
from ggufcluster.core.gguf import (
    MAGIC,
    MAX_KEY_BYTES,
    SCALAR_FORMATS,
    GgufHeader,
    Value,
    ValueType,
    read_header,
)
from ggufcluster.core.gguf_write import GgufModel, Tensor, array, string
from ggufcluster.errors import ModelFileError
from tests.workflows.tiny_model import tiny

# Nothing that a busy machine changes: neither deadlines nor the check for drawing too slowly.
FUZZ = settings(
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=300,
    suppress_health_check=[HealthCheck.too_slow],
)

VALID = GgufModel(
    {**tiny(2).metadata, "words": array(ValueType.STRING, ["a", "b"])}, tiny(2).tensors
).to_bytes()
HEADER = read_header(io.BytesIO(VALID)).data_start

RANGES: dict[ValueType, st.SearchStrategy[Any]] = {
    ValueType.BOOL: st.booleans(),
    ValueType.FLOAT32: st.floats(width=32, allow_nan=False),
    ValueType.FLOAT64: st.floats(allow_nan=False),
    **{
        kind: st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        if signed
        else st.integers(0, 2**bits - 1)
        for kind, bits, signed in (
            (ValueType.UINT8, 8, False),
            (ValueType.INT8, 8, True),
            (ValueType.UINT16, 16, False),
            (ValueType.INT16, 16, True),
            (ValueType.UINT32, 32, False),
            (ValueType.INT32, 32, True),
            (ValueType.UINT64, 64, False),
            (ValueType.INT64, 64, True),
        )
    },
}


@st.composite
def values(draw: st.DrawFn) -> Value:
    """Any value that a file may hold, arrays included."""
    kind = draw(st.sampled_from([*RANGES, ValueType.STRING]))
    one = st.text(max_size=20) if kind is ValueType.STRING else RANGES[kind]
    if draw(st.booleans()):
        return Value(kind, draw(one))
    return array(kind, draw(st.lists(one, max_size=5)))


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any tensor of a few hundred bytes."""
    kind = draw(st.sampled_from(TensorType))
    rows = draw(st.lists(st.integers(1, 3), max_size=3))
    shape = (LAYOUTS[kind].elements * draw(st.integers(1, 2)), *rows)
    name = draw(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
    return Tensor(name[:63], shape, kind, bytes(tensor_bytes(shape, kind)))


METADATA = st.dictionaries(st.text(min_size=1, max_size=20), values(), max_size=8).map(
    lambda found: {key: value for key, value in found.items() if key != "general.alignment"}
)
TENSORS = st.lists(tensors(), max_size=6, unique_by=lambda tensor: tensor.name)


def read(data: bytes) -> GgufHeader | None:
    """Read a header; None if it is refused by an error of ours."""
    try:
        return read_header(io.BytesIO(data), size=len(data))
    except ModelFileError as error:
        told = str(error)
    assert "\n" not in told
    assert len(told) < 500
    return None


def check(header: GgufHeader | None, size: int) -> None:
    """Whatever is accepted lies within the file, each tensor in a place of its own."""
    if header is None:
        return
    end = 0
    for info in header.tensors:
        assert info.offset >= end
        end = info.offset + info.size
    assert header.extent <= size
    assert len({info.name for info in header.tensors}) == len(header.tensors)


@FUZZ
@given(METADATA, TENSORS)
def test_what_is_written_is_read(metadata: dict[str, Value], found: list[Tensor]) -> None:
    """Every value of every type and every tensor comes back as it was."""
    data = GgufModel(metadata, found).to_bytes()
    header = read(data)
    assert header is not None
    assert dict(header.metadata) == metadata
    assert [(info.name, info.shape, info.type) for info in header.tensors] == [
        (tensor.name, tensor.shape, tensor.type) for tensor in found
    ]
    assert GgufModel(header.metadata, found).to_bytes() == data


@FUZZ
@given(METADATA)
def test_spans_hold_their_keys(metadata: dict[str, Value]) -> None:
    """The bytes of each key with its value are where the header says, one after the other."""
    data = GgufModel(metadata, []).to_bytes()
    header = read(data)
    assert header is not None
    end = len(MAGIC) + struct.calcsize("<IQQ")
    for key, span in header.key_spans.items():
        alone = GgufModel({key: metadata[key]}, []).to_bytes()
        stored = data[slice(*span)]
        assert span[0] == end
        assert stored == alone[24 : 24 + len(stored)]
        end = span[1]


@FUZZ
@given(st.binary(max_size=400))
def test_any_bytes_behind_the_magic(data: bytes) -> None:
    """Noise is refused, or by a rare chance a header."""
    whole = MAGIC + struct.pack("<I", 3) + data
    check(read(whole), len(whole))


@FUZZ
@given(
    st.lists(
        st.tuples(st.integers(4, HEADER - 1), st.binary(min_size=1, max_size=8)),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, len(VALID)),
)
def test_a_damaged_header(patches: list[tuple[int, bytes]], cut: int) -> None:
    """A real header with a few other bytes, or cut, is refused or still right in itself."""
    data = bytearray(VALID)
    for place, patch in patches:
        data[place : place + len(patch)] = patch
    check(read(bytes(data)), len(data))
    check(read(bytes(data[:cut])), cut)


@FUZZ
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.binary())
def test_any_counts(count: int, keys: int, kind: int, rest: bytes) -> None:
    """No count and no type number makes the reader fail otherwise than by refusing."""
    whole = MAGIC + struct.pack("<IQQ", 3, count, keys) + rest
    check(read(whole), len(whole))
    one = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", ValueType.ARRAY, kind, count) + rest
    whole = MAGIC + struct.pack("<IQQ", 3, 0, 1) + one
    check(read(whole), len(whole))


@FUZZ
@given(st.lists(st.integers(0, 2**64 - 1), max_size=4), st.integers(0, 2**64 - 1))
def test_any_shape_and_place(shape: list[int], offset: int) -> None:
    """Dimensions and offsets of any size neither overflow nor pass unseen."""
    info = struct.pack(f"<Q1sI{len(shape)}QIQ", 1, b"t", len(shape), *shape, 0, offset)
    whole = MAGIC + struct.pack("<IQQ", 3, 1, 0) + info + bytes(4096)
    check(read(whole), len(whole))


def test_the_longest_key_is_refused_in_few_words() -> None:
    """A key as long as may be does not fill the terminal when it appears twice."""
    data = bytearray(GgufModel({"k" * MAX_KEY_BYTES: string("x")}, []).to_bytes())
    body = bytes(data[24 : 24 + 8 + MAX_KEY_BYTES + 13])
    assert read(MAGIC + struct.pack("<IQQ", 3, 0, 2) + body + body) is None


def test_all_scalar_types_are_drawn() -> None:
    """The strategies above leave out no type of value."""
    assert set(RANGES) == set(SCALAR_FORMATS)
