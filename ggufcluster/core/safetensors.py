"""Read the header of a safetensors file, and turn what it points to into F32.

Layout (safetensors format): the header's length as 64-bit number, the header as JSON (name to type,
shape and place of each tensor), the data.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from ggufcluster.core.gguf_cursor import shown
from ggufcluster.errors import GraftError

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HEADER_BYTES = 16 << 20
LENGTH_BYTES = 8
_SIZES = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file: `start` counts from the file's beginning, `shape` is the outermost first.

    `type` is ``F32``, ``F16`` or ``BF16``.
    """

    type: str
    shape: tuple[int, ...]
    start: int
    size: int


def header_length(data: bytes, *, path: str) -> int:
    """Return the length of the JSON from the first eight bytes of a file; raises GraftError."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little") if len(data) >= LENGTH_BYTES else 0
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise GraftError("is not a safetensors file", path=path)
    return length


def read_tensors(
    header: bytes, *, keep: Callable[[str], bool], path: str
) -> dict[str, StoredTensor]:
    """Return the tensors of a header whose name `keep` wants.

    Raises:
        GraftError: The header cannot be right, or one of them is of a type that is not known.
    """
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise GraftError("has a damaged safetensors header", path=path) from error
    if not isinstance(entries, dict):
        raise GraftError("has a damaged safetensors header", path=path)
    base = LENGTH_BYTES + len(header)
    return {
        name: _stored(name, entry, base, path=path) for name, entry in entries.items() if keep(name)
    }


def to_f32(data: bytes, kind: str, *, plus_one: bool = False) -> bytes:
    """Turn tensor data into F32, with one added to each number if asked for.

    As the converter does (conversion/base.py of the pin): F16 adds in F16, all else in F32.
    """
    if plus_one:
        code = {"F32": "f", "F16": "e", "BF16": "f"}[kind]
        numbers = struct.unpack(f"<{len(data) // _SIZES[kind]}{code}", _widened(data, kind))
        data = struct.pack(f"<{len(numbers)}{code}", *(number + 1.0 for number in numbers))
        kind = "F16" if kind == "F16" else "F32"
    if kind == "F16":
        numbers = struct.unpack(f"<{len(data) // 2}e", data)
        return struct.pack(f"<{len(numbers)}f", *numbers)
    return _widened(data, kind)


def _widened(data: bytes, kind: str) -> bytes:
    if kind != "BF16":
        return data
    # A BF16 number is the upper half of the same F32 number.
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return bytes(wide)


def _stored(name: str, entry: Any, base: int, *, path: str) -> StoredTensor:
    try:
        kind, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        whole = all(isinstance(number, int) and number >= 0 for number in (*shape, start, end))
        right = whole and end - start == prod(shape) * _SIZES[kind]
    except (KeyError, TypeError, ValueError) as error:
        raise GraftError(f"holds {shown(name)} in an unknown form", path=path) from error
    if not right:
        raise GraftError(f"holds {shown(name)} with a size that cannot be right", path=path)
    return StoredTensor(kind, shape, base + start, end - start)
