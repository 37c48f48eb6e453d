"""Fetch a small file whole, as a server likes to send it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from ggufcluster.adapters.http.body import words_of
from ggufcluster.core.http_answers import host_of
from ggufcluster.errors import TransferError

if TYPE_CHECKING:
    from ggufcluster.core.secret import Secret

_SECONDS = 30.0


def fetch_small(url: str, *, limit: int, token: Secret | None = None) -> bytes:
    """Fetch a file of at most `limit` bytes; the token goes to the origin of `url` only.

    Raises:
        TransferError: The server cannot be reached or refuses, or the file is longer.
    """
    headers = {"Authorization": f"Bearer {token.reveal()}"} if token else {}
    host = host_of(url)
    try:
        with (
            httpx.Client(timeout=_SECONDS, follow_redirects=True, headers=headers) as client,
            client.stream("GET", url) as answer,
        ):
            if answer.is_error:
                reason = f"answered {answer.status_code} {answer.reason_phrase} for {_name(url)}"
                raise TransferError(reason, where=host, status=answer.status_code)
            data = bytearray()
            for chunk in answer.iter_bytes():
                data += chunk
                if len(data) > limit:
                    raise TransferError(f"{_name(url)} has more than {limit:,} bytes", where=host)
            return bytes(data)
    except httpx.HTTPError as error:
        raise TransferError(words_of(error), where=host) from error
    except httpx.InvalidURL as error:
        raise TransferError(f"{error} is no address", where=host) from error


def _name(url: str) -> str:
    return httpx.URL(url).path.rpartition("/")[2]
