"""Read numbers and strings of a GGUF header forwards, within fixed limits.

No count or length found in the file is trusted: memory grows only with bytes really read, and what
may be read, kept and counted in all is limited. Whoever wrote the file decides nothing about time
and memory.
"""

from __future__ import annotations

import struct
from typing import NoReturn, Protocol

from ggufcluster.errors import ModelFileError, TruncatedModelError

# The longest headers seen are those of large vocabularies: 262,144 tokens and 514,906 merges, some
# 20 MB; a few converters add the tokenizer's own file as one string of 33 MB.
MAX_HEADER_BYTES = 128 << 20
MAX_STRING_BYTES = 64 << 20
MAX_STRINGS = 1 << 20
MAX_ARRAY_ELEMENTS = 1 << 24

# What is kept in memory; beyond that, values are passed over.
KEEP_TEXT_BYTES = 1 << 20
KEEP_ALL_TEXT_BYTES = 8 << 20
KEEP_ALL_ELEMENTS = 1 << 18

# The header's length is unknown until it has been read: a far source is asked for little first.
FIRST_CHUNK_BYTES = 256 << 10
CHUNK_BYTES = 4 << 20

_SHOWN = 80


class ByteSource(Protocol):
    """Anything that can be read forwards, such as an open binary file."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none means the end."""


class Cursor:
    """A place in a source that only moves forwards.

    Args:
        source: Where bytes come from.
        path: Name of the file, used in errors only.
    """

    def __init__(self, source: ByteSource, *, path: str | None) -> None:
        self._source = source
        self._path = path
        self._buffer = b""
        self._at = 0
        self._consumed = 0
        self._chunk = FIRST_CHUNK_BYTES
        self._strings = 0

    @property
    def position(self) -> int:
        """Bytes passed so far."""
        return self._consumed + self._at

    def number(self, code: str) -> int:
        """Take one whole number of a `struct` format."""
        return int(self.unpack(code))

    def unpack(self, code: str) -> int | float | bool:
        """Take one value of a `struct` format."""
        layout = "<" + code
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        assert isinstance(value, int | float)
        return value

    def count(self, what: str, limit: int) -> int:
        """Take a 64-bit count; more than `limit` is refused."""
        count = self.number("Q")
        if count > limit:
            self.refuse(f"claims {count} {what} at byte {self.position - 8} (limit {limit})")
        return count

    def string_bytes(self, limit: int = MAX_STRING_BYTES) -> bytes:
        """Take a string as it is stored; a longer one than `limit` bytes is refused."""
        return self.take(self.count("bytes in a string", limit))

    def name(self, what: str, limit: int) -> str:
        """Take a string that must be UTF-8."""
        return self.decode(what, self.string_bytes(limit))

    def decode(self, what: str, stored: bytes) -> str:
        """Turn bytes into text; what is no UTF-8 is refused."""
        try:
            return stored.decode()
        except UnicodeDecodeError:
            self.refuse(f"{what} {stored[:_SHOWN]!r} is not UTF-8")

    def take(self, size: int) -> bytes:
        """Take exactly `size` bytes."""
        taken = self.take_at_most(size)
        if len(taken) < size:
            self._end(size - len(taken))
        return taken

    def take_at_most(self, size: int) -> bytes:
        """Take `size` bytes, fewer if the source ends."""
        while len(self._buffer) - self._at < size and self._refill():
            pass
        taken = self._buffer[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def skip(self, size: int) -> None:
        """Pass over `size` bytes."""
        while (available := len(self._buffer) - self._at) < size:
            size -= available
            self._at = len(self._buffer)
            if not self._refill():
                self._end(size)
        self._at += size

    def claim_strings(self, count: int) -> None:
        """Note that `count` strings of an array follow; too many in all are refused."""
        self._strings += count
        if self._strings > MAX_STRINGS:
            self.refuse(f"claims {self._strings} strings in arrays (limit {MAX_STRINGS})")

    def skip_strings(self, count: int) -> None:
        """Pass over that many strings."""
        # A vocabulary has some 400,000 strings, so one call for each would be slow.
        length_at = struct.Struct("<Q").unpack_from
        while count:
            buffer, at = self._buffer, self._at
            while count and at + 8 <= len(buffer):
                at += 8 + length_at(buffer, at)[0]
                count -= 1
            self._at = min(at, len(buffer))
            if at - len(buffer) > MAX_STRING_BYTES:
                self.refuse(f"claims a string of more than {MAX_STRING_BYTES} bytes")
            self.skip(max(0, at - len(buffer)))
            if count:
                self.skip(self.count("bytes in a string", MAX_STRING_BYTES))
                count -= 1

    def refuse(self, reason: str) -> NoReturn:
        """Raise ModelFileError."""
        raise ModelFileError(reason, path=self._path)

    def _refill(self) -> bool:
        if self._consumed + len(self._buffer) >= MAX_HEADER_BYTES:
            self.refuse(f"has a header of more than {MAX_HEADER_BYTES} bytes")
        chunk = self._source.read(self._chunk)
        self._chunk = min(2 * self._chunk, CHUNK_BYTES)
        self._consumed += self._at
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return bool(chunk)

    def _end(self, missing: int) -> NoReturn:
        have = self.position
        raise TruncatedModelError(have=have, need=have + missing, path=self._path)


def plain(text: str) -> str:
    """Return a text of the file fit for a terminal: without control characters, and not long."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_SHOWN])


def shown(name: str) -> str:
    """Quote a name of the file for a message: without control characters, and not too long."""
    return repr(name if len(name) <= _SHOWN else name[:_SHOWN] + "...")
