"""Writing GGUF files."""

from __future__ import annotations

import io

import pytest

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf import SkippedArray, Value, ValueType
from ggufcluster.core.gguf_write import GgufModel, Tensor, array, f16_bytes, f32_bytes, uint32


def test_empty_model_is_the_preamble_padded() -> None:
    """A file without keys and tensors is 24 bytes of counts, padded to the alignment."""
    assert GgufModel({}, []).to_bytes() == b"GGUF\x03\0\0\0" + bytes(24)


def test_known_bytes() -> None:
    """One key and one tensor are laid out as the GGUF specification says."""
    model = GgufModel({"k": uint32(7)}, [Tensor("t", (2,), TensorType.F32, f32_bytes([1, 2]))])
    header = (
        b"GGUF"
        b"\x03\0\0\0"
        b"\x01\0\0\0\0\0\0\0"
        b"\x01\0\0\0\0\0\0\0"
        b"\x01\0\0\0\0\0\0\0k"
        b"\x04\0\0\0"
        b"\x07\0\0\0"
        b"\x01\0\0\0\0\0\0\0t"
        b"\x01\0\0\0"
        b"\x02\0\0\0\0\0\0\0"
        b"\0\0\0\0"
        b"\0\0\0\0\0\0\0\0"
    )
    data = b"\0\0\x80\x3f\0\0\0\x40"
    assert model.to_bytes() == header.ljust(96, b"\0") + data.ljust(32, b"\0")


def test_write_to_reports_the_length() -> None:
    """Writing to a stream gives the same bytes and says how many."""
    model = GgufModel({"k": uint32(7)}, [Tensor("t", (1,), TensorType.F16, f16_bytes([1]))])
    sink = io.BytesIO()
    assert model.write_to(sink) == len(sink.getvalue())
    assert sink.getvalue() == model.to_bytes()


def test_data_of_the_wrong_length_is_refused() -> None:
    """A tensor whose data does not fit its shape cannot be made."""
    with pytest.raises(ValueError, match="needs 16 bytes of data, got 12"):
        Tensor("t", (4,), TensorType.F32, bytes(12))


def test_skipped_arrays_cannot_be_written() -> None:
    """What was passed over when reading would be lost, so writing it is refused."""
    skipped = Value(ValueType.ARRAY, SkippedArray(9), ValueType.STRING)
    with pytest.raises(TypeError, match="skipped"):
        GgufModel({"k": skipped}, []).to_bytes()


def test_arrays_need_an_element_type() -> None:
    """An array without element type cannot be written."""
    with pytest.raises(ValueError, match="element type"):
        GgufModel({"k": Value(ValueType.ARRAY, (1, 2))}, []).to_bytes()


def test_numbers_out_of_range_are_refused() -> None:
    """An element that its type cannot hold is an error, not another number."""
    with pytest.raises(Exception, match="format requires"):
        GgufModel({"k": array(ValueType.UINT8, [256])}, []).to_bytes()
