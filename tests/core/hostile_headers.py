"""GGUF headers that want to cost time or memory; run as a program they are read under a limit.

python -m tests.core.hostile_headers NAME
"""

from __future__ import annotations

import io
import resource
import struct
import sys
from typing import TYPE_CHECKING

from ggufcluster.core.gguf import MAGIC, read_header
from ggufcluster.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MEMORY_BYTES = 200 << 20
MANY = 1 << 62


class Endless(io.RawIOBase):
    """A stream that never ends: what `pieces` gives, each piece as often as is asked for."""

    def __init__(self, start: bytes, pieces: Iterator[bytes]) -> None:
        self._start = start
        self._pieces = pieces

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes."""
        gathered, length = [self._start], len(self._start)
        while length < size:
            gathered.append(next(self._pieces))
            length += len(gathered[-1])
        whole = b"".join(gathered)
        self._start = whole[size:]
        return whole[:size]


def text(value: bytes) -> bytes:
    """Make a string as stored."""
    return struct.pack("<Q", len(value)) + value


def preamble(tensors: int = 0, keys: int = 0) -> bytes:
    """Make magic, version and counts."""
    return MAGIC + struct.pack("<IQQ", 3, tensors, keys)


def array(element: int, count: int) -> bytes:
    """Make a key with the begin of an array."""
    return text(b"k") + struct.pack("<IIQ", 9, element, count)


def forever(piece: bytes) -> Iterator[bytes]:
    """Repeat a piece, many at a time."""
    block = piece * max(1, (1 << 16) // len(piece))
    while True:
        yield block


def numbered(make: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Make pieces with a name that differs in each."""
    number = 0
    while True:
        yield make(b"%08d" % number)
        number += 1


def _tensor(name: bytes) -> bytes:
    return text(b"t" * 50 + name) + struct.pack("<IQIQ", 1, 8, 0, 32 * int(name))


HOSTILE: dict[str, Callable[[], Endless]] = {
    "huge counts": lambda: Endless(preamble(MANY, MANY), forever(b"\0")),
    "endless zeros": lambda: Endless(preamble(1 << 15, 1 << 13), forever(b"\0")),
    "endless tensors": lambda: Endless(preamble(1 << 15), numbered(_tensor)),
    "endless keys": lambda: Endless(
        preamble(0, 1 << 13), numbered(lambda n: text(n * 8000) + struct.pack("<IB", 0, 1))
    ),
    "endless long texts": lambda: Endless(
        preamble(0, 1 << 13),
        numbered(lambda n: text(n) + struct.pack("<I", 8) + text("é€𝄞".encode() * 90_000)),
    ),
    "endless short strings": lambda: Endless(
        preamble(0, 1) + array(8, 1 << 20), forever(text(b""))
    ),
    "endless kept strings": lambda: Endless(
        preamble(0, 1 << 13),
        numbered(lambda n: text(n) + struct.pack("<IIQ", 9, 8, 1024) + text(b"\xff\xfe") * 1024),
    ),
    "endless kept numbers": lambda: Endless(
        preamble(0, 1 << 13),
        numbered(lambda n: text(n) + struct.pack("<IIQ", 9, 10, 1024) + b"\x80" * 8192),
    ),
    "one text of ASCII that ends wide": lambda: Endless(
        preamble(0, 2) + text(b"k") + struct.pack("<I", 8),
        iter([text(b"a" * (1 << 20) + "𝄞".encode()), *[bytes(1 << 20)] * 200]),
    ),
    "a string longer than any file": lambda: Endless(
        preamble(0, 1) + text(b"k") + struct.pack("<IQ", 8, MANY), forever(b"x")
    ),
    "the longest string that may be": lambda: Endless(
        preamble(0, 2) + text(b"k") + struct.pack("<IQ", 8, 64 << 20), forever(b"x")
    ),
    "the longest array that may be": lambda: Endless(
        preamble(0, 1) + array(12, 1 << 24), forever(b"x")
    ),
    "arrays in arrays": lambda: Endless(
        preamble(0, 1) + text(b"k") + struct.pack("<I", 9),
        forever(struct.pack("<IQ", 9, 1)),
    ),
    "a wide alignment": lambda: Endless(
        preamble(1, 1)
        + text(b"general.alignment")
        + struct.pack("<II", 4, 1 << 31)
        + text(b"t")
        + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 20, 0, 0),
        forever(b"\0"),
    ),
}


def main(name: str) -> None:
    """Read one of them with little memory and print how it ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        header = read_header(HOSTILE[name](), size=1 << 50)
    except ModelFileError as error:
        sys.stdout.write(f"refused: {error}\n")
    else:
        told = f"read: {len(header.metadata)} keys, {len(header.tensors)} tensors\n"
        sys.stdout.write(told)


if __name__ == "__main__":
    main(sys.argv[1])
