"""Read the header of a GGUF file: metadata, tensor list, and the size the file must have.

Layout (GGUF specification, versions 2 and 3, little-endian): magic, version, tensor count,
key count, key/value pairs, tensor infos, padding to the alignment, tensor data.
No count or length found in the file is trusted: memory grows only with bytes really read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import TYPE_CHECKING, NoReturn, Protocol, TypeAlias

from ggufcluster.core.ggml_types import TensorType, tensor_bytes
from ggufcluster.errors import ModelFileError, NotGgufError, TruncatedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

MAX_ENTRIES = 1 << 16
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_ELEMENTS = 1 << 24
MAX_DIMENSIONS = 4
MAX_ELEMENTS = (1 << 63) - 1
KEEP_ARRAYS_UP_TO = 1024
CHUNK_BYTES = 1 << 20


class ByteSource(Protocol):
    """Anything that can be read forwards, such as an open binary file."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none means the end."""


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
class Value:
    """One metadata value with its stored type; `element` is set for arrays only."""

    type: ValueType
    value: Scalar | tuple[Scalar, ...] | SkippedArray
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
    """All that a GGUF file says before its tensor data; sizes and positions are in bytes."""

    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_start: int
    extent: int

    def get(self, key: str) -> Scalar | tuple[Scalar, ...] | SkippedArray | None:
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
    reader = _HeaderReader(source, path=path, keep=keep_arrays_up_to)
    version, tensor_count, key_count = reader.preamble()
    metadata = reader.metadata(key_count)
    alignment = reader.alignment(metadata)
    tensors = reader.tensors(tensor_count, alignment)
    data_start = -(-reader.position // alignment) * alignment
    ends = [data_start + info.offset + info.size for info in tensors]
    header = GgufHeader(
        version=version,
        metadata=metadata,
        tensors=tensors,
        alignment=alignment,
        data_start=data_start,
        extent=max(ends, default=reader.position),
    )
    _require_extent(header, size=size, path=path)
    return header


def _require_extent(header: GgufHeader, *, size: int | None, path: str | None) -> None:
    if size is not None and size < header.extent:
        raise TruncatedModelError(have=size, need=header.extent, path=path)


class _HeaderReader:
    """Cursor over the source that checks every number before it acts on it."""

    def __init__(self, source: ByteSource, *, path: str | None, keep: int) -> None:
        self._source = source
        self._path = path
        self._keep = keep
        self._buffer = b""
        self._at = 0
        self._consumed = 0

    @property
    def position(self) -> int:
        return self._consumed + self._at

    def preamble(self) -> tuple[int, int, int]:
        if (magic := self._take_at_most(len(MAGIC))) != MAGIC:
            raise NotGgufError(f"not a GGUF file, it begins with {magic!r}", path=self._path)
        version = self._number("I")
        if version & 0xFFFF == 0:
            self._refuse("big-endian GGUF files are not supported")
        if version not in VERSIONS:
            self._refuse(f"GGUF version {version} is not supported (2 and 3 are)")
        return version, self._count("tensors", MAX_ENTRIES), self._count("keys", MAX_ENTRIES)

    def metadata(self, count: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for _ in range(count):
            key = self._string()
            if key in found:
                self._refuse(f"key {key!r} appears twice")
            found[key] = self._value(key)
        return found

    def alignment(self, metadata: Mapping[str, Value]) -> int:
        stored = metadata.get(ALIGNMENT_KEY, Value(ValueType.UINT32, DEFAULT_ALIGNMENT))
        number = stored.value
        if not isinstance(number, int) or stored.type is not ValueType.UINT32:
            self._refuse(f"{ALIGNMENT_KEY} is not a 32-bit number")
        if number <= 0 or number & (number - 1):
            self._refuse(f"{ALIGNMENT_KEY} {number} is not a power of two")
        return number

    def tensors(self, count: int, alignment: int) -> tuple[TensorInfo, ...]:
        found: dict[str, TensorInfo] = {}
        for _ in range(count):
            info = self._tensor()
            if info.name in found:
                self._refuse(f"tensor {info.name!r} appears twice")
            if info.offset % alignment:
                self._refuse(f"tensor {info.name!r} is not aligned to {alignment} bytes")
            found[info.name] = info
        return tuple(found.values())

    def _tensor(self) -> TensorInfo:
        name = self._string()
        dimensions = self._number("I")
        if dimensions > MAX_DIMENSIONS:
            self._refuse(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        if prod(shape) > MAX_ELEMENTS:
            self._refuse(f"tensor {name!r} has an absurd shape {shape}")
        kind = self._tensor_type(name, self._number("I"))
        size = self._tensor_bytes(name, shape, kind)
        return TensorInfo(name, shape, kind, self._number("Q"), size)

    def _tensor_type(self, name: str, number: int) -> TensorType:
        try:
            return TensorType(number)
        except ValueError:
            self._refuse(f"tensor {name!r} has unknown type {number}")

    def _tensor_bytes(self, name: str, shape: tuple[int, ...], kind: TensorType) -> int:
        try:
            return tensor_bytes(shape, kind)
        except ValueError as error:
            self._refuse(f"tensor {name!r}: {error}")

    def _value(self, key: str) -> Value:
        kind = self._value_type(key)
        if kind is not ValueType.ARRAY:
            return Value(kind, self._scalar(kind))
        element = self._value_type(key)
        if element is ValueType.ARRAY:
            self._refuse(f"key {key!r} holds an array of arrays")
        count = self._count(f"elements in {key!r}", MAX_ARRAY_ELEMENTS)
        if count > self._keep:
            self._skip_array(element, count)
            return Value(kind, SkippedArray(count), element)
        return Value(kind, tuple(self._scalar(element) for _ in range(count)), element)

    def _value_type(self, key: str) -> ValueType:
        number = self._number("I")
        try:
            return ValueType(number)
        except ValueError:
            self._refuse(f"key {key!r} has unknown value type {number}")

    def _scalar(self, kind: ValueType) -> Scalar:
        if kind is ValueType.STRING:
            return self._string()
        return self._unpack(SCALAR_FORMATS[kind])

    def _skip_array(self, element: ValueType, count: int) -> None:
        if element is ValueType.STRING:
            self._skip_strings(count)
        else:
            self._skip(count * struct.calcsize(SCALAR_FORMATS[element]))

    def _skip_strings(self, count: int) -> None:
        # A vocabulary has some 400,000 strings, so one call for each would be slow.
        length_at = struct.Struct("<Q").unpack_from
        while count:
            buffer, at = self._buffer, self._at
            while count and at + 8 <= len(buffer):
                at += 8 + length_at(buffer, at)[0]
                count -= 1
            self._at = min(at, len(buffer))
            if at - len(buffer) > MAX_STRING_BYTES:
                self._refuse(f"claims a string of more than {MAX_STRING_BYTES} bytes")
            self._skip(max(0, at - len(buffer)))
            if count:
                self._skip(self._string_length())
                count -= 1

    def _string(self) -> str:
        # Tokens need not be valid UTF-8; this way writing them again gives the same bytes.
        return self._take(self._string_length()).decode("utf-8", "surrogateescape")

    def _string_length(self) -> int:
        return self._count("bytes in a string", MAX_STRING_BYTES)

    def _count(self, what: str, limit: int) -> int:
        count = self._number("Q")
        if count > limit:
            self._refuse(f"claims {count} {what} at byte {self.position - 8} (limit {limit})")
        return count

    def _number(self, code: str) -> int:
        return int(self._unpack(code))

    def _unpack(self, code: str) -> int | float | bool:
        layout = "<" + code
        (value,) = struct.unpack(layout, self._take(struct.calcsize(layout)))
        assert isinstance(value, int | float)
        return value

    def _take(self, size: int) -> bytes:
        taken = self._take_at_most(size)
        if len(taken) < size:
            self._end(size - len(taken))
        return taken

    def _take_at_most(self, size: int) -> bytes:
        while len(self._buffer) - self._at < size and self._refill():
            pass
        taken = self._buffer[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def _skip(self, size: int) -> None:
        while (available := len(self._buffer) - self._at) < size:
            size -= available
            self._at = len(self._buffer)
            if not self._refill():
                self._end(size)
        self._at += size

    def _refill(self) -> bool:
        chunk = self._source.read(CHUNK_BYTES)
        self._consumed += self._at
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return bool(chunk)

    def _end(self, missing: int) -> NoReturn:
        have = self.position
        raise TruncatedModelError(have=have, need=have + missing, path=self._path)

    def _refuse(self, reason: str) -> NoReturn:
        raise ModelFileError(reason, path=self._path)
