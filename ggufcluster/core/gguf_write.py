"""Write GGUF files (version 3, little-endian)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ggufcluster.core.ggml_types import TensorType, tensor_bytes
from ggufcluster.core.gguf import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    MAGIC,
    SCALAR_FORMATS,
    Scalar,
    SkippedArray,
    SkippedText,
    Value,
    ValueType,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

VERSION = 3


class ByteSink(Protocol):
    """Anything that takes bytes, such as a file open for binary writing."""

    def write(self, data: bytes, /) -> int:
        """Take `data` and return how many bytes were taken."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor with its data as stored; `shape` has the row length first."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    data: bytes

    def __post_init__(self) -> None:
        need = tensor_bytes(self.shape, self.type)
        if len(self.data) != need:
            raise ValueError(f"tensor {self.name} needs {need} bytes of data, got {len(self.data)}")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """Metadata and tensors of one file, in the order they are written."""

    metadata: Mapping[str, Value]
    tensors: Sequence[Tensor]

    def chunks(self) -> Iterator[bytes]:
        """Yield the file piece by piece, so that it need not be held twice in memory."""
        pairs = [pair(key, value) for key, value in self.metadata.items()]
        alignment = _alignment(self.metadata)
        yield head(pairs, self.tensors, alignment)
        for tensor in self.tensors:
            yield padded(tensor.data, alignment)

    def write_to(self, sink: ByteSink) -> int:
        """Write the file to `sink` and return its length in bytes."""
        total = 0
        for chunk in self.chunks():
            sink.write(chunk)
            total += len(chunk)
        return total

    def to_bytes(self) -> bytes:
        """Return the whole file as bytes."""
        return b"".join(self.chunks())


class Described(Protocol):
    """A tensor's name, shape and type, without its data."""

    @property
    def name(self) -> str:
        """Name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, row length first."""

    @property
    def type(self) -> TensorType:
        """How it is stored."""


def head(pairs: Sequence[bytes], tensors: Sequence[Described], alignment: int) -> bytes:
    """Return all that stands before the data, padded to where the data begins.

    The data of each tensor follows in the same order, each `padded`.

    Args:
        pairs: Keys with their values, as `pair` makes them.
        tensors: What follows.
        alignment: What the pairs say of it, 32 if nothing.
    """
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(pairs)), *pairs]
    offset = 0
    for tensor in tensors:
        parts.append(_info(tensor, offset))
        size = tensor_bytes(tensor.shape, tensor.type)
        offset += size + -size % alignment
    return padded(b"".join(parts), alignment)


def pair(key: str, value: Value) -> bytes:
    """Return a key with its value as stored."""
    return _text(key) + _value(value)


def padded(data: bytes, alignment: int) -> bytes:
    """Fill data up to the next multiple of the alignment."""
    return data + bytes(-len(data) % alignment)


def string(value: str) -> Value:
    """Make a string value."""
    return Value(ValueType.STRING, value)


def uint32(value: int) -> Value:
    """Make an unsigned 32-bit value, the usual type of counts in model metadata."""
    return Value(ValueType.UINT32, value)


def float32(value: float) -> Value:
    """Make a 32-bit floating point value."""
    return Value(ValueType.FLOAT32, value)


def array(element: ValueType, values: Iterable[Scalar]) -> Value:
    """Make an array whose elements are stored as `element`."""
    return Value(ValueType.ARRAY, tuple(values), element)


def f32_bytes(values: Sequence[float]) -> bytes:
    """Pack numbers as F32 tensor data."""
    return struct.pack(f"<{len(values)}f", *values)


def f16_bytes(values: Sequence[float]) -> bytes:
    """Pack numbers as F16 tensor data, rounding to nearest."""
    return struct.pack(f"<{len(values)}e", *values)


def _alignment(metadata: Mapping[str, Value]) -> int:
    stored = metadata.get(ALIGNMENT_KEY)
    if stored is None:
        return DEFAULT_ALIGNMENT
    if not isinstance(stored.value, int):
        raise TypeError(f"{ALIGNMENT_KEY} must be a number")
    return stored.value


def _info(tensor: Described, offset: int) -> bytes:
    count = len(tensor.shape)
    numbers = struct.pack(f"<I{count}QIQ", count, *tensor.shape, tensor.type, offset)
    return _text(tensor.name) + numbers


def _value(value: Value) -> bytes:
    content = value.value
    if isinstance(content, SkippedArray | SkippedText):
        raise TypeError("a value that was skipped when reading cannot be written")
    if not isinstance(content, tuple):
        return struct.pack("<I", value.type) + _scalar(value.type, content)
    if value.element is None:
        raise ValueError("an array value needs its element type")
    head = struct.pack("<IIQ", value.type, value.element, len(content))
    return head + b"".join(_scalar(value.element, item) for item in content)


def _scalar(kind: ValueType, value: Scalar) -> bytes:
    if isinstance(value, str):
        return _text(value)
    return struct.pack("<" + SCALAR_FORMATS[kind], value)


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data
