"""Fetch byte ranges of remote files over HTTP."""

from __future__ import annotations

import io
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx

from ggufcluster.adapters.http.body import RangeBody, words_of
from ggufcluster.core.http_answers import (
    ContentRange,
    backoff_seconds,
    host_of,
    parse_content_range,
    same_origin,
    wait_seconds,
    wait_text,
)
from ggufcluster.errors import RangesIgnoredError, RemoteChangedError, TransferError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from ggufcluster.core.secret import Secret

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 20.0
_MOST_REDIRECTS = 5
_TRIES = 4
_LONGEST_WAIT = 600.0
_BLOCK = 1 << 20
_REPEATABLE = frozenset({408, 425, 429, 500, 502, 503, 504})


class RangeClient:
    """Connections to file servers, safe to share between threads.

    Proxies are taken from the environment. The token goes to the origin of `token_for` only: what
    a redirect or a signed address leads to never sees it.

    Args:
        token: Access token, if any.
        token_for: Address whose origin may see the token.
        read_seconds: How long a connection may stay silent.
        longest_wait: Seconds; `read` gives up if a server asks to wait longer.
    """

    def __init__(
        self,
        *,
        token: Secret | None = None,
        token_for: str = "",
        read_seconds: float = _READ_SECONDS,
        longest_wait: float = _LONGEST_WAIT,
    ) -> None:
        self._token = token
        self._longest_wait = longest_wait
        self._token_for = token_for
        self._silence = read_seconds
        self._client = httpx.Client(
            headers={"Accept-Encoding": "identity", "User-Agent": "ggufcluster"},
            timeout=httpx.Timeout(_CONNECT_SECONDS, read=read_seconds, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            follow_redirects=True,
            max_redirects=_MOST_REDIRECTS,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    @contextmanager
    def open_range(
        self, url: str, start: int, end: int, *, total: int | None = None
    ) -> Iterator[RangeBody]:
        """Ask for the bytes from `start` up to, not with, `end`.

        Args:
            url: Address of the file.
            start: First byte.
            end: One behind the last byte; a file that ends earlier gives fewer.
            total: Size that the file must have, if known.

        Raises:
            TransferError: The server cannot be reached or refuses.
            RangesIgnoredError: It sends the whole file.
            RemoteChangedError: It sends other bytes than asked for, or of a file of another size.
        """
        host = host_of(url)
        headers = self._authorization(url) | {"Range": f"bytes={start}-{end - 1}"}
        try:
            with self._client.stream("GET", url, headers=headers) as answer:
                found = _check(answer, start, end, total=total, host=host)
                yield RangeBody(answer, found, host=host, silence=self._silence)
        except httpx.HTTPError as error:
            raise TransferError(words_of(error), where=host) from error
        except httpx.InvalidURL as error:
            raise TransferError(f"{error} is no address", where=host) from error

    def read(self, url: str, start: int, length: int) -> tuple[bytes, int | None]:
        """Return bytes of a file and, if the server says it, the file's size.

        What is worth repeating is repeated; errors as `open_range` has them.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                with self.open_range(url, start, start + length) as body:
                    return b"".join(body.chunks()), body.range.total
            except TransferError as error:
                is_too_long = (error.wait or 0.0) > self._longest_wait
                if attempt == _TRIES or is_too_long or not may_repeat(error):
                    raise
                time.sleep(error.wait or backoff_seconds(attempt, chance=random.random()))  # noqa: S311
        raise AssertionError("the last attempt returns or raises")

    def _authorization(self, url: str) -> dict[str, str]:
        if self._token is None or not same_origin(url, self._token_for):
            return {}
        return {"Authorization": f"Bearer {self._token.reveal()}"}


class RemoteFile(io.RawIOBase):
    """A remote file to read and seek in, fetched by ranges; see `open_remote`.

    Attributes:
        size: Of the whole file, in bytes.
        fetched: How many bytes came over the network so far.
    """

    def __init__(self, client: RangeClient, url: str, *, block: int = _BLOCK) -> None:
        self._client = client
        self._url = url
        self._block = block
        self._position = 0
        self._held_from = 0
        self._held, size = client.read(url, 0, block)
        if size is None:
            raise TransferError("does not tell the size of the file", where=host_of(url))
        self.size = size
        self.fetched = len(self._held)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in the file."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position; nothing is fetched."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer, at most to the end of what one request brings; 0 at the file's end."""
        if self._position >= self.size or not len(buffer):
            return 0
        offset = self._position - self._held_from
        if not 0 <= offset < len(self._held):
            self._fetch(max(self._block, len(buffer)))
            offset = 0
        piece = self._held[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def _fetch(self, length: int) -> None:
        length = min(length, self.size - self._position)
        data, size = self._client.read(self._url, self._position, length)
        if size not in {self.size, None}:
            reason = f"has {size:,} bytes now, it had {self.size:,}"
            raise RemoteChangedError(reason, where=host_of(self._url))
        self._held, self._held_from = data, self._position
        self.fetched += len(data)


def open_remote(client: RangeClient, url: str) -> io.BufferedReader:
    """Open a remote file as a binary stream; its first MiB is fetched at once.

    The stream's ``raw`` is the `RemoteFile`. Raises as `RangeClient.open_range`.
    """
    return io.BufferedReader(RemoteFile(client, url), 1 << 16)


def read_range(
    url: str, start: int, length: int, *, token: Secret | None = None, token_for: str = ""
) -> bytes:
    """Return `length` bytes of a remote file from `start`, fewer at its end.

    For more than a few ranges of one server share a `RangeClient`.

    Raises:
        TransferError: The server cannot be reached or refuses, also when asked again.
        RangesIgnoredError: It sends the whole file.
        RemoteChangedError: It sends other bytes than asked for.
    """
    with RangeClient(token=token, token_for=token_for) as client:
        return client.read(url, start, length)[0]


def may_repeat(error: TransferError) -> bool:
    """Tell whether the same request may well succeed later."""
    return error.status is None or error.status in _REPEATABLE


def _check(
    answer: httpx.Response, start: int, end: int, *, total: int | None, host: str
) -> ContentRange:
    if (whole := _whole_file(answer, start, end)) is not None:
        return _require(whole, start, end, total=total, host=host)
    if answer.status_code == 200:
        raise RangesIgnoredError("sends the whole file where a part was asked for", where=host)
    if answer.status_code != 206:
        wait = wait_seconds(answer.headers, now=time.time())
        raise TransferError(
            f"answered {answer.status_code} {answer.reason_phrase}".rstrip() + wait_text(wait),
            where=host,
            status=answer.status_code,
            wait=wait,
        )
    packed = answer.headers.get("content-encoding", "identity")
    if packed != "identity":
        raise RangesIgnoredError(f"packs its answers ({packed}), unasked", where=host)
    text = answer.headers.get("content-range", "")
    found = parse_content_range(text)
    if found is None:
        raise RemoteChangedError(_other_than(repr(text), start, end, total), where=host)
    return _require(found, start, end, total=total, host=host)


def _whole_file(answer: httpx.Response, start: int, end: int) -> ContentRange | None:
    """Return what an answer holds that is no part, if it is the whole file and was asked for.

    A server may send a file that fits into the range as it is, and an empty one has no range.
    """
    headers = answer.headers
    if answer.status_code == 416 and headers.get("content-range", "").strip() == "bytes */0":
        return ContentRange(0, 0, 0) if start == 0 else None
    length = headers.get("content-length", "")
    if answer.status_code != 200 or start or not length.isdigit() or int(length) > end:
        return None
    if headers.get("content-encoding", "identity") != "identity":
        return None
    return ContentRange(0, int(length), int(length))


def _require(
    found: ContentRange, start: int, end: int, *, total: int | None, host: str
) -> ContentRange:
    if not _is_asked_for(found, start, end, total):
        part = f"bytes {found.start}-{found.end - 1}" if found.end else "nothing"
        sent = f"{part} of {'?' if found.total is None else found.total}"
        raise RemoteChangedError(_other_than(sent, start, end, total), where=host)
    return found


def _other_than(sent: str, start: int, end: int, total: int | None) -> str:
    of = "?" if total is None else total
    return f"sent {sent} where bytes {start}-{end - 1} of {of} were asked for"


def _is_asked_for(found: ContentRange, start: int, end: int, total: int | None) -> bool:
    known = {size for size in (found.total, total) if size is not None}
    return found.start == start and len(known) <= 1 and found.end == min({end, *known})
