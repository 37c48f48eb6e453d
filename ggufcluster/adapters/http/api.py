"""Talk to llama-server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from ggufcluster.adapters.http.body import words_of
from ggufcluster.errors import HeadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.secret import Secret

_SHORT = 5.0


class Api(Protocol):
    """What ggufcluster asks of a running llama-server."""

    def health(self) -> str:
        """Return ``ok``, ``loading`` or ``down``; never raises."""

    def get(self, path: str) -> Any:
        """Return the JSON under a path such as ``/props``; raises `HeadError`."""

    def post(self, path: str, body: dict[str, Any], *, timeout: float) -> Any:
        """Send JSON, return JSON; raises `HeadError`."""


class StreamingApi(Api, Protocol):
    """An `Api` that can also answer piece by piece."""

    def stream(self, path: str, body: dict[str, Any], *, timeout: float) -> Iterator[Any]:
        """Send JSON, yield the JSON of each server-sent event; raises `HeadError`.

        Closing the iterator ends the answer. `timeout` bounds the wait for each piece.
        """


class HttpApi:
    """An `Api` over HTTP.

    Args:
        root: Server root such as ``http://127.0.0.1:8080``.
        key: API key, if the server wants one.
    """

    def __init__(self, root: str, *, key: Secret | None = None) -> None:
        self._root = root
        headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
        # The server is on this machine or this network: a proxy has no business between.
        # A connection of its own for each request: the server closes idle ones at any moment.
        self._client = httpx.Client(
            base_url=root,
            headers=headers,
            timeout=_SHORT,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def health(self) -> str:
        """Return ``ok``, ``loading`` or ``down``; never raises."""
        try:
            status = self._client.get("/health").status_code
        except httpx.HTTPError:
            return "down"
        return {200: "ok", 503: "loading"}.get(status, "down")

    def get(self, path: str) -> Any:
        """Return the JSON under a path; raises `HeadError`."""
        return self._json("GET", path, timeout=_SHORT)

    def post(self, path: str, body: dict[str, Any], *, timeout: float) -> Any:
        """Send JSON, return JSON; raises `HeadError`."""
        return self._json("POST", path, timeout=timeout, json=body)

    def stream(self, path: str, body: dict[str, Any], *, timeout: float) -> Iterator[Any]:
        """Send JSON, yield the JSON of each server-sent event; raises `HeadError`."""
        try:
            with self._client.stream("POST", path, json=body, timeout=timeout) as answer:
                if answer.is_error:
                    answer.read()
                    raise HeadError(f"{self._root}{path} answered {_reason(answer)}")
                for line in answer.iter_lines():
                    if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                        yield self._event(json.loads(data), path)
        except (httpx.HTTPError, ValueError) as error:
            raise HeadError(f"{self._root}{path}: {words_of(error)}") from error

    def _event(self, event: Any, path: str) -> Any:
        if isinstance(event, dict) and event.get("error"):
            raise HeadError(f"{self._root}{path} broke off: {str(event['error'])[:300]}")
        return event

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _json(self, method: str, path: str, **options: Any) -> Any:
        try:
            answer = self._client.request(method, path, **options)
            if answer.is_error:
                raise HeadError(f"{self._root}{path} answered {_reason(answer)}")
            return answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise HeadError(f"{self._root}{path}: {words_of(error)}") from error


def _reason(answer: httpx.Response) -> str:
    try:
        return f"{answer.status_code}: {answer.json()['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return f"{answer.status_code}: {answer.text[:200]}"
