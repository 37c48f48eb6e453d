"""Reading GGUF headers, good and bad ones."""

from __future__ import annotations

import io
import struct
import tracemalloc

import pytest

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf import (
    MAGIC,
    GgufHeader,
    SkippedArray,
    Value,
    ValueType,
    read_header,
)
from ggufcluster.core.gguf_write import GgufModel, Tensor, array, f16_bytes, f32_bytes, string
from ggufcluster.errors import ModelFileError, NotGgufError, TruncatedModelError

METADATA = {
    "general.architecture": string("minimax-m3"),
    "a.u8": Value(ValueType.UINT8, 255),
    "a.i8": Value(ValueType.INT8, -128),
    "a.u16": Value(ValueType.UINT16, 65535),
    "a.i16": Value(ValueType.INT16, -32768),
    "a.u32": Value(ValueType.UINT32, 2**32 - 1),
    "a.i32": Value(ValueType.INT32, -(2**31)),
    "a.f32": Value(ValueType.FLOAT32, 0.5),
    "a.yes": Value(ValueType.BOOL, True),
    "a.u64": Value(ValueType.UINT64, 2**64 - 1),
    "a.i64": Value(ValueType.INT64, -(2**63)),
    "a.f64": Value(ValueType.FLOAT64, 1e300),
    "a.words": array(ValueType.STRING, ["", "Grüße", "\udcff"]),
    "a.numbers": array(ValueType.INT32, [-1, 0, 1]),
    "a.nothing": array(ValueType.STRING, []),
}
TENSORS = [
    Tensor("small", (3,), TensorType.F32, f32_bytes([1.0, 2.0, 3.0])),
    Tensor("half", (2, 2), TensorType.F16, f16_bytes([0.5, 1.5, -2.0, 4.0])),
    Tensor("blocks", (32, 2), TensorType.Q8_0, bytes(range(68))),
]
MODEL = GgufModel(METADATA, TENSORS)


def read(data: bytes, *, keep: int = 1024) -> GgufHeader:
    """Read a whole file's header."""
    return read_header(io.BytesIO(data), size=len(data), keep_arrays_up_to=keep)


def preamble(*, version: int = 3, tensors: int = 0, keys: int = 0) -> bytes:
    """Make magic, version and counts."""
    return MAGIC + struct.pack("<IQQ", version, tensors, keys)


def text(value: str) -> bytes:
    """Make a string as stored."""
    return struct.pack("<Q", len(value)) + value.encode()


def one_tensor(*, dimensions: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    """Make a file with one tensor that has room for 32 F32 values."""
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    info = text("t") + shape + struct.pack("<IQ", kind, offset)
    return (preamble(tensors=1) + info).ljust(96, b"\0") + bytes(128)


def test_metadata_survives_a_round_trip() -> None:
    """Every value comes back with its type, strings that are not UTF-8 included."""
    assert dict(read(MODEL.to_bytes()).metadata) == METADATA


def test_tensors_are_found_where_they_lie() -> None:
    """Offsets, sizes and the start of the data lead to each tensor's bytes."""
    data = MODEL.to_bytes()
    header = read(data)
    for tensor in TENSORS:
        info = header.tensor(tensor.name)
        assert info is not None
        start = header.data_start + info.offset
        assert (info.shape, info.type) == (tensor.shape, tensor.type)
        assert start % header.alignment == 0
        assert data[start : start + info.size] == tensor.data


def test_reading_and_writing_again_gives_the_same_bytes() -> None:
    """A file made from what was read equals the file that was read."""
    data = MODEL.to_bytes()
    header = read(data)
    assert GgufModel(header.metadata, TENSORS).to_bytes() == data


def test_alignment_is_the_files_own() -> None:
    """A file may ask for a wider alignment than the default."""
    metadata = METADATA | {"general.alignment": Value(ValueType.UINT32, 256)}
    header = read(GgufModel(metadata, TENSORS).to_bytes())
    assert header.alignment == 256
    assert header.data_start % 256 == 0
    assert [info.offset for info in header.tensors] == [0, 256, 512]


def test_extent_counts_to_the_end_of_the_last_tensor() -> None:
    """The padding behind the last tensor may be missing, its last byte may not."""
    data = MODEL.to_bytes()
    extent = read(data).extent
    assert extent == data.rindex(TENSORS[-1].data) + 68
    assert read(data[:extent]).extent == extent
    with pytest.raises(TruncatedModelError) as caught:
        read(data[: extent - 1])
    assert (caught.value.have, caught.value.need) == (extent - 1, extent)


def test_extent_is_known_without_the_data() -> None:
    """The first part of a download is enough to know how long the whole file is."""
    data = MODEL.to_bytes()
    whole = read(data)
    part = read_header(io.BytesIO(data[: whole.data_start]))
    assert part == whole


def test_a_header_cut_anywhere_is_truncated() -> None:
    """A file that ends at any byte of its header, magic apart, is reported as cut short."""
    data = MODEL.to_bytes()
    header_end = data.index(b"blocks") + len(b"blocks") + struct.calcsize("<IQQIQ")
    for length in range(len(MAGIC), header_end):
        with pytest.raises(TruncatedModelError) as caught:
            read(data[:length])
        assert caught.value.have <= length < caught.value.need


@pytest.mark.parametrize("data", [b"", b"GGU", b"GGML" + bytes(64), b"<!doctype html>" * 9])
def test_other_files_are_not_gguf(data: bytes) -> None:
    """Anything without the magic is refused as no GGUF, with the name it was given."""
    with pytest.raises(NotGgufError) as caught:
        read_header(io.BytesIO(data), path="shard.gguf")
    assert caught.value.path == "shard.gguf"
    assert ("is empty" in str(caught.value)) is (data == b"")


def test_a_pointer_in_the_place_of_a_file_is_named() -> None:
    """A repository that was cloned without its large files is told from damage."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    with pytest.raises(NotGgufError, match="is a pointer of Git LFS"):
        read_header(io.BytesIO(pointer))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (preamble(version=1), "version 1"),
        (preamble(version=4), "version 4"),
        (MAGIC + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (preamble(tensors=2**40), "1099511627776 tensors"),
        (preamble(keys=2**63), "9223372036854775808 keys"),
        (preamble(keys=1) + struct.pack("<Q", 2**60), "bytes in a string"),
        (preamble(keys=1) + text("k") + struct.pack("<I", 13), "unknown value type 13"),
        (preamble(keys=1) + text("k") + struct.pack("<II", 9, 9), "array of arrays"),
        (preamble(keys=1) + text("k") + struct.pack("<IIQ", 9, 4, 2**40), "elements in 'k'"),
        (preamble(keys=2) + 2 * (text("k") + struct.pack("<I?", 7, True)), "appears twice"),
        (one_tensor(dimensions=(1,) * 5), "5 dimensions"),
        (one_tensor(dimensions=(2**40, 2**40)), "absurd shape"),
        (one_tensor(kind=4), "unknown type 4"),
        (one_tensor(dimensions=(33,), kind=8), "do not fill Q8_0 blocks"),
        (one_tensor(dimensions=(2**61,)), "beyond what a file can hold"),
        (one_tensor(dimensions=(0, 2)), "absurd shape"),
        (one_tensor(offset=8), "begins at byte 8 of the data instead of 0"),
        (one_tensor(offset=2**64 - 32), "begins at byte 18,446,744,073,709,551,584"),
    ],
)
def test_absurd_headers_are_refused(data: bytes, reason: str) -> None:
    """A header that cannot be right is refused with what is wrong in it."""
    with pytest.raises(ModelFileError, match=reason):
        read(data)


@pytest.mark.parametrize("alignment", [0, 48])
def test_odd_alignments_are_refused(alignment: int) -> None:
    """An alignment that is no power of two is refused."""
    number = struct.pack("<II", ValueType.UINT32, alignment)
    with pytest.raises(ModelFileError, match="not a power of two"):
        read(preamble(keys=1) + text("general.alignment") + number)


def test_a_tensor_that_appears_twice_is_refused() -> None:
    """Two tensors of one name make a file ambiguous."""
    with pytest.raises(ModelFileError, match="'small' appears twice"):
        read(GgufModel({}, TENSORS[:1] * 2).to_bytes())


def test_tensor_data_beyond_the_file_is_truncated() -> None:
    """A tensor that reaches beyond the end of the file counts as missing data."""
    with pytest.raises(TruncatedModelError) as caught:
        read(one_tensor(dimensions=(2**40,)))
    assert caught.value.need > 2**40


def test_large_arrays_are_passed_over_or_kept_on_demand() -> None:
    """A vocabulary is skipped by default, yet what follows it is read; it can be asked for."""
    words = [f"word {number}" for number in range(3000)]
    metadata = {
        "words": array(ValueType.STRING, words),
        "scores": array(ValueType.FLOAT32, [0.5] * 3000),
        "after": string("here"),
    }
    data = GgufModel(metadata, TENSORS).to_bytes()
    assert read(data).get("words") == SkippedArray(3000)
    assert read(data).get("scores") == SkippedArray(3000)
    assert read(data).get("after") == "here"
    assert read(data, keep=5000).get("words") == tuple(words)
    assert read(data).tensors == read(data, keep=5000).tensors


def test_absurd_strings_in_passed_over_arrays_are_refused() -> None:
    """Lengths are checked in arrays that are skipped, too."""
    strings = text("fine") + struct.pack("<Q", 2**60) + bytes(64)
    data = preamble(keys=1) + text("k") + struct.pack("<IIQ", 9, 8, 3) + strings
    with pytest.raises(ModelFileError, match="claims a string of more than"):
        read(data, keep=0)


def test_claimed_lengths_allocate_nothing() -> None:
    """A short file that claims the largest permitted array costs no more memory than its size."""
    data = preamble(keys=1) + text("k") + struct.pack("<IIQ", 9, 10, 2**24)
    tracemalloc.start()
    try:
        with pytest.raises(TruncatedModelError):
            read(data, keep=2**24)
        with pytest.raises(TruncatedModelError):
            read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


def test_sources_may_hand_out_little_at_a_time() -> None:
    """A stream that returns a few bytes for each read is read to the same end."""

    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(7, size or 7))

    data = MODEL.to_bytes()
    for keep in (0, 1024):
        dripping = read_header(Dripping(data), size=len(data), keep_arrays_up_to=keep)
        assert dripping == read(data, keep=keep)


def test_missing_keys_and_tensors_are_none() -> None:
    """Asking for what a file does not have gives None."""
    header = read(MODEL.to_bytes())
    assert header.get("no.such.key") is None
    assert header.tensor("no.such.tensor") is None
