"""Safetensors headers and numbers."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggufcluster.core.safetensors import (
    MAX_HEADER_BYTES,
    StoredTensor,
    header_length,
    read_tensors,
    to_f32,
)
from ggufcluster.errors import GraftError
from tests.core.test_gguf_fuzz import FUZZ

GOOD = {"dtype": "BF16", "shape": [4, 2], "data_offsets": [16, 32]}


def read(entries: object) -> dict[str, StoredTensor]:
    """Read a header made of these entries, all tensors wanted."""
    return read_tensors(json.dumps(entries).encode(), keep=lambda name: name == "t", path="f")


def test_a_tensor_is_found_behind_the_header() -> None:
    """Places count from the beginning of the file; what is not wanted is not looked at."""
    header = json.dumps({"__metadata__": {}, "t": GOOD, "other": "odd"}).encode()
    found = read_tensors(header, keep=lambda name: name == "t", path="f")
    assert found == {"t": StoredTensor("BF16", (4, 2), 8 + len(header) + 16, 16)}


@pytest.mark.parametrize(
    "data", [b"", b"1234567", struct.pack("<Q", 1), struct.pack("<Q", MAX_HEADER_BYTES + 1)]
)
def test_other_files_are_told(data: bytes) -> None:
    """A length that no header has means that this is another kind of file."""
    with pytest.raises(GraftError, match="f: is not a safetensors file"):
        header_length(data, path="f")


@pytest.mark.parametrize("header", [b"{", b"[1]", b"\xff\xfe", b"[" * 200_000])
def test_damaged_headers_are_told(header: bytes) -> None:
    """What is no JSON object, and JSON nested deeper than Python follows, is refused."""
    with pytest.raises(GraftError, match="damaged"):
        read_tensors(header, keep=bool, path="f")


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F8_E4M3"},
        {"dtype": None},
        {"shape": [4, -2]},
        {"shape": [4, 3]},
        {"shape": 8},
        {"data_offsets": [16]},
        {"data_offsets": [16, 40]},
        {"data_offsets": [-16, 0]},
        {"data_offsets": [16.0, 32.0]},
    ],
)
def test_odd_entries_are_told(change: dict[str, Any]) -> None:
    """Types that are not known and sizes that contradict each other name the tensor."""
    with pytest.raises(GraftError, match="holds 't'"):
        read({"t": GOOD | change})
    with pytest.raises(GraftError, match="holds 't'"):
        read({"t": []})


@FUZZ
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.just("t") | st.text(), inner),
    )
)
def test_any_json(entries: object) -> None:
    """Whatever the JSON, an answer or an error of ours."""
    try:
        found = read(entries)
    except GraftError:
        return
    assert all(tensor.size >= 0 for tensor in found.values())


NUMBERS = (0.0, 1.0, -2.5, 0.0078125)


def test_types_are_widened() -> None:
    """Numbers that all types can hold come out as they went in."""
    f32 = struct.pack("<4f", *NUMBERS)
    assert to_f32(f32, "F32") == f32
    assert to_f32(struct.pack("<4e", *NUMBERS), "F16") == f32
    upper = b"".join(f32[at + 2 : at + 4] for at in range(0, len(f32), 4))
    assert to_f32(upper, "BF16") == f32


@pytest.mark.parametrize(
    ("kind", "stored", "expected"),
    [
        ("F32", struct.pack("<2f", 1e-7, 0.25), struct.pack("<2f", 1 + 1e-7, 1.25)),
        # BF16 is widened before the addition, so that small numbers are not lost.
        ("BF16", b"\x00\x3b\x80\x3e", struct.pack("<2f", 1 + 2**-9, 1.25)),
        # F16 is added to in F16, where a ten-thousandth vanishes beside one.
        ("F16", struct.pack("<2e", 1e-4, 0.25), struct.pack("<2f", 1.0, 1.25)),
    ],
)
def test_one_is_added_as_the_converter_does(kind: str, stored: bytes, expected: bytes) -> None:
    """Norms get their one in the type in which the converter adds it."""
    assert to_f32(stored, kind, plus_one=True) == expected
