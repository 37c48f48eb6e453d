"""The bytes of one ranged answer."""

from __future__ import annotations

import re
import ssl
import time
from typing import TYPE_CHECKING

import httpx

from ggufcluster.errors import RemoteChangedError, TransferError

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from ggufcluster.core.http_answers import ContentRange

# httpx repeats the system's words with its number before them.
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")


class RangeBody:
    """The bytes of one answer, as they come.

    The body of a plain answer is read from the socket straight into the caller's buffer: through
    httpx the same bytes are copied several times in small pieces, which costs several times as much
    as receiving them. Whatever is not plain (chunks, TLS inside TLS) goes through httpx.

    Args:
        answer: The opened answer.
        content_range: Which bytes of the file it holds.
        host: For messages.
        silence: Most seconds between two bytes, for `chunks`.

    Attributes:
        range: Which bytes of the file they are.
    """

    def __init__(
        self, answer: httpx.Response, content_range: ContentRange, *, host: str, silence: float
    ) -> None:
        self._silence = silence
        self.range = content_range
        self._host = host
        self._left = content_range.end - content_range.start
        self._pieces = answer.iter_raw()
        self._socket = _plain_socket(answer, self._left)
        self._pending = memoryview(b"")
        self._is_ours = False

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes; raises `TransferError` if the connection breaks or they are too few."""
        buffer = memoryview(bytearray(1 << 18))
        while self._left:
            count = self.read_into(buffer, seconds=self._silence)
            if not count:
                raise TransferError("gave no answer in time", where=self._host)
            yield bytes(buffer[:count])

    def read_into(self, buffer: memoryview, *, seconds: float) -> int:
        """Fill a buffer as far as bytes come in time; return how many, 0 if none came yet.

        Args:
            buffer: Where the bytes go.
            seconds: How long to wait, if the answer is plain; else as long as the client waits.

        Raises:
            TransferError: The connection broke, or the answer ended early.
            RemoteChangedError: The answer is longer than it said.
        """
        if not self._left:
            return 0
        if not self._pending:
            if self._socket is not None and self._is_ours:
                return self._receive(self._socket, buffer[: self._left], seconds)
            self._pending = self._next_piece()
        count = min(len(self._pending), len(buffer))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        self._left -= count
        return count

    def _next_piece(self) -> memoryview:
        try:
            piece = next(self._pieces, b"")
        except httpx.HTTPError as error:
            raise TransferError(words_of(error), where=self._host) from error
        if not piece:
            raise self._ended_early()
        if len(piece) > self._left:
            raise RemoteChangedError("sent more bytes than it said", where=self._host)
        # The first piece holds all that httpx has read ahead. Its iterator stays referenced: the
        # iterator's end would close the connection.
        self._is_ours = True
        return memoryview(piece)

    def _receive(self, connection: socket.socket, buffer: memoryview, seconds: float) -> int:
        filled = 0
        until = time.monotonic() + seconds
        connection.settimeout(seconds)
        try:
            while filled < len(buffer) and (not filled or time.monotonic() < until):
                count = connection.recv_into(buffer[filled:])
                if not count:
                    break
                filled += count
        except TimeoutError:
            return self._took(filled)
        except OSError as error:
            if not filled:
                raise TransferError(error.strerror or str(error), where=self._host) from error
        if not filled:
            raise self._ended_early()
        return self._took(filled)

    def _took(self, count: int) -> int:
        self._left -= count
        return count

    def _ended_early(self) -> TransferError:
        return TransferError(f"the answer ended {self._left:,} bytes early", where=self._host)


def words_of(error: Exception) -> str:
    """Say what went wrong, for people."""
    if isinstance(error, httpx.TimeoutException):
        return "gave no answer in time"
    return _ERRNO.sub("", str(error)) or type(error).__name__


def _plain_socket(answer: httpx.Response, length: int) -> socket.socket | None:
    """Return the socket of an answer if its body comes over it with nothing in between."""
    headers = answer.headers
    plain = headers.get("content-length") == str(length) and "transfer-encoding" not in headers
    encoded = headers.get("content-encoding", "identity") != "identity"
    stream = answer.extensions.get("network_stream")
    if (
        not plain
        or encoded
        or stream is None
        or answer.http_version not in {"HTTP/1.1", "HTTP/1.0"}
    ):
        return None
    connection: socket.socket | None = stream.get_extra_info("socket")
    if answer.url.scheme != "https":
        return connection
    # With TLS inside TLS this socket would be the proxy's, and its bytes not the file's.
    direct = isinstance(connection, ssl.SSLSocket) and connection.server_hostname == answer.url.host
    return connection if direct else None
