"""Read the header of a GGUF file: metadata, tensor list, and the size the file must have.

Layout (GGUF specification, versions 2 and 3, little-endian): magic, version, tensor count,
key count, key/value pairs, tensor infos, padding to the alignment, tensor data. What the pinned
llama.cpp refuses (ggml/src/gguf.cpp) is refused here as well, before it is loaded for minutes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from ggufcluster.core.ggml_types import TensorType, tensor_bytes
from ggufcluster.core.gguf_cursor import (
    KEEP_ALL_ELEMENTS,
    KEEP_ALL_TEXT_BYTES,
    KEEP_TEXT_BYTES,
    MAX_ARRAY_ELEMENTS,
    MAX_STRING_BYTES,
    ByteSource,
    Cursor,
    shown,
)
from ggufcluster.errors import ModelFileError, NotGgufError, TruncatedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC = b"GGUF"
_POINTER = b"version https://git-lfs"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

MAX_KEYS = 1 << 13
MAX_TENSORS = 1 << 15
MAX_KEY_BYTES = (1 << 16) - 1  # the specification's
MAX_TENSOR_NAME_BYTES = 63  # ggml keeps a name in 64 bytes, the last one zero
MAX_DIMENSIONS = 4
MAX_ELEMENTS = (1 << 63) - 1
KEEP_ARRAYS_UP_TO = 1024


class ValueType(IntEnum):
    """Number of a metadata value's type (GGUF specification)."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALAR_FORMATS: dict[ValueType, str] = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}

Scalar: TypeAlias = int | float | bool | str


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """Stands for an array that was passed over because it has more elements than asked for."""

    count: int


@dataclass(frozen=True, slots=True)
class SkippedText:
    """Stands for a string that was passed over because it is too long to keep."""

    size: int


Content: TypeAlias = Scalar | tuple[Scalar, ...] | SkippedArray | SkippedText


@dataclass(frozen=True, slots=True)
class Value:
    """One metadata value with its stored type; `element` is set for arrays only."""

    type: ValueType
    value: Content
    element: ValueType | None = None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: `offset` counts bytes from the start of the data section.

    `shape` has the row length first, as stored.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All that a GGUF file says before its tensor data; sizes and positions are in bytes.

    Attributes:
        version: Version of the layout.
        metadata: Values by key, in the file's order.
        tensors: In the file's order.
        alignment: Multiple at which each tensor begins.
        data_start: Where the data section begins.
        extent: End of the last tensor: the least length of the file.
        key_spans: Where each key with its value is stored: begin and end.
    """

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_start: int
    extent: int
    key_spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def get(self, key: str) -> Content | None:
        """Return the plain value of a key, or None if the file does not have it."""
        found = self.metadata.get(key)
        return None if found is None else found.value

    def number(self, key: str) -> int:
        """Return a key's whole number; raises ModelFileError if there is none."""
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelFileError(f"has no {key}")
        return value

    def optional(self, key: str) -> int:
        """Return a key's whole number, 0 if there is none."""
        value = self.get(key)
        return value if isinstance(value, int) else 0

    def text(self, key: str) -> str | None:
        """Return a key's text, None if there is none."""
        value = self.get(key)
        return value if isinstance(value, str) else None

    def tensor(self, name: str) -> TensorInfo | None:
        """Return one tensor's place, or None if the file does not have it."""
        return next((info for info in self.tensors if info.name == name), None)


def read_header(
    source: ByteSource,
    *,
    size: int | None = None,
    keep_arrays_up_to: int = KEEP_ARRAYS_UP_TO,
    path: str | None = None,
) -> GgufHeader:
    """Read a header from the start of `source`, which is only read forwards.

    `size` is the file's length in bytes; if given, a file shorter than its tensors need is
    refused. Arrays with more than `keep_arrays_up_to` elements become SkippedArray. `path` is
    used in errors only. Raises NotGgufError, TruncatedModelError or ModelFileError.
    """
    reader = _HeaderReader(Cursor(source, path=path), keep=keep_arrays_up_to)
    version, tensor_count, key_count = reader.preamble(path)
    reader.read_metadata(key_count)
    alignment = reader.alignment()
    tensors = reader.tensors(tensor_count)
    position = reader.cursor.position
    data_start = -(-position // alignment) * alignment
    header = GgufHeader(
        version=version,
        metadata=reader.metadata,
        tensors=tensors,
        alignment=alignment,
        data_start=data_start,
        extent=_extent(tensors, data_start, alignment, reader.cursor) or position,
        key_spans=reader.spans,
    )
    if size is not None and size < header.extent:
        raise TruncatedModelError(have=size, need=header.extent, path=path)
    return header


def _extent(
    tensors: tuple[TensorInfo, ...], data_start: int, alignment: int, cursor: Cursor
) -> int:
    """Return the end of the last tensor, 0 if there is none.

    llama.cpp takes no file in which tensors do not follow each other without holes.
    """
    end = expected = 0
    for info in tensors:
        if info.offset < expected:
            cursor.refuse(f"tensor {shown(info.name)} overlaps the one before it")
        if info.offset > expected:
            cursor.refuse(
                f"tensor {shown(info.name)} begins at byte {info.offset:,} of the data"
                f" instead of {expected:,}"
            )
        end = data_start + info.offset + info.size
        expected += -(-info.size // alignment) * alignment
        if end > MAX_ELEMENTS:
            cursor.refuse(f"tensor {shown(info.name)} ends beyond what a file can hold")
    return end


def _what_else(begin: bytes, cursor: Cursor) -> str:
    """Say what a file is that does not begin as a GGUF file does."""
    if not begin:
        return "is empty, no GGUF file"
    if (begin + cursor.take_at_most(len(_POINTER))).startswith(_POINTER):
        return "is a pointer of Git LFS, not the file itself: `git lfs pull` fetches it"
    return f"not a GGUF file, it begins with {repr(begin)[1:]}"


class _HeaderReader:
    """Reads the parts of a header one after the other and checks each number before it acts."""

    def __init__(self, cursor: Cursor, *, keep: int) -> None:
        self.cursor = cursor
        self.metadata: dict[str, Value] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self._keep = keep
        self._text_left = KEEP_ALL_TEXT_BYTES
        self._elements_left = KEEP_ALL_ELEMENTS

    def preamble(self, path: str | None) -> tuple[int, int, int]:
        cursor = self.cursor
        if (magic := cursor.take_at_most(len(MAGIC))) != MAGIC:
            raise NotGgufError(_what_else(magic, cursor), path=path)
        version = cursor.number("I")
        if version & 0xFFFF == 0:
            cursor.refuse("big-endian GGUF files are not supported")
        if version not in VERSIONS:
            cursor.refuse(f"GGUF version {version} is not supported (2 and 3 are)")
        return version, cursor.count("tensors", MAX_TENSORS), cursor.count("keys", MAX_KEYS)

    def read_metadata(self, count: int) -> None:
        for _ in range(count):
            start = self.cursor.position
            key = self.cursor.name("key", MAX_KEY_BYTES)
            if not key:
                self.cursor.refuse(f"a key at byte {start} has no name")
            if key in self.metadata:
                self.cursor.refuse(f"key {shown(key)} appears twice")
            self._text_left -= len(key)
            if self._text_left < 0:
                self.cursor.refuse(f"has keys of more than {KEEP_ALL_TEXT_BYTES} bytes in all")
            self.metadata[key] = self._value(shown(key))
            self.spans[key] = start, self.cursor.position

    def alignment(self) -> int:
        stored = self.metadata.get(ALIGNMENT_KEY, Value(ValueType.UINT32, DEFAULT_ALIGNMENT))
        number = stored.value
        if not isinstance(number, int) or stored.type is not ValueType.UINT32:
            self.cursor.refuse(f"{ALIGNMENT_KEY} is not a 32-bit number")
        if number <= 0 or number & (number - 1):
            self.cursor.refuse(f"{ALIGNMENT_KEY} {number} is not a power of two")
        return number

    def tensors(self, count: int) -> tuple[TensorInfo, ...]:
        found: dict[str, TensorInfo] = {}
        for _ in range(count):
            info = self._tensor()
            if info.name in found:
                self.cursor.refuse(f"tensor {shown(info.name)} appears twice")
            found[info.name] = info
        return tuple(found.values())

    def _tensor(self) -> TensorInfo:
        cursor = self.cursor
        name = cursor.name("tensor name", MAX_TENSOR_NAME_BYTES)
        if not name.isprintable() or not name:
            cursor.refuse(f"tensor name {shown(name)} has characters that no name has")
        dimensions = cursor.number("I")
        if dimensions > MAX_DIMENSIONS:
            cursor.refuse(f"tensor {shown(name)} has {dimensions} dimensions")
        shape = tuple(cursor.number("Q") for _ in range(dimensions))
        if not 0 < prod(shape) <= MAX_ELEMENTS:
            cursor.refuse(f"tensor {shown(name)} has an absurd shape {shape}")
        kind = self._tensor_type(name, cursor.number("I"))
        size = self._tensor_bytes(name, shape, kind)
        return TensorInfo(name, shape, kind, cursor.number("Q"), size)

    def _tensor_type(self, name: str, number: int) -> TensorType:
        try:
            return TensorType(number)
        except ValueError:
            self.cursor.refuse(f"tensor {shown(name)} has unknown type {number}")

    def _tensor_bytes(self, name: str, shape: tuple[int, ...], kind: TensorType) -> int:
        try:
            return tensor_bytes(shape, kind)
        except ValueError as error:
            self.cursor.refuse(f"tensor {shown(name)}: {error}")

    def _value(self, key: str) -> Value:
        kind = self._value_type(key)
        if kind is ValueType.STRING:
            return Value(kind, self._text(key))
        if kind is not ValueType.ARRAY:
            return Value(kind, self.cursor.unpack(SCALAR_FORMATS[kind]))
        element = self._value_type(key)
        if element is ValueType.ARRAY:
            self.cursor.refuse(f"key {key} holds an array of arrays")
        count = self.cursor.count(f"elements in {key}", MAX_ARRAY_ELEMENTS)
        return Value(kind, self._array(element, count), element)

    def _value_type(self, key: str) -> ValueType:
        number = self.cursor.number("I")
        try:
            return ValueType(number)
        except ValueError:
            self.cursor.refuse(f"key {key} has unknown value type {number}")

    def _text(self, key: str) -> str | SkippedText:
        size = self.cursor.count("bytes in a string", MAX_STRING_BYTES)
        if size > min(KEEP_TEXT_BYTES, self._text_left):
            self.cursor.skip(size)
            return SkippedText(size)
        self._text_left -= size
        return self.cursor.decode(f"value of key {key}", self.cursor.take(size))

    def _array(self, element: ValueType, count: int) -> tuple[Scalar, ...] | SkippedArray:
        if element is ValueType.STRING:
            self.cursor.claim_strings(count)
        if count > min(self._keep, self._elements_left):
            self._skip_array(element, count)
            return SkippedArray(count)
        self._elements_left -= count
        if element is ValueType.STRING:
            return self._strings(count)
        layout = f"<{count}{SCALAR_FORMATS[element]}"
        return struct.unpack(layout, self.cursor.take(struct.calcsize(layout)))

    def _strings(self, count: int) -> tuple[str, ...] | SkippedArray:
        found: list[str] = []
        while len(found) < count:
            stored = self.cursor.string_bytes(KEEP_TEXT_BYTES)
            self._text_left -= len(stored)
            if self._text_left < 0:
                self.cursor.skip_strings(count - len(found) - 1)
                return SkippedArray(count)
            # Tokens need not be valid UTF-8; this way writing them again gives the same bytes.
            found.append(stored.decode("utf-8", "surrogateescape"))
        return tuple(found)

    def _skip_array(self, element: ValueType, count: int) -> None:
        if element is ValueType.STRING:
            self.cursor.skip_strings(count)
        else:
            self.cursor.skip(count * struct.calcsize(SCALAR_FORMATS[element]))
