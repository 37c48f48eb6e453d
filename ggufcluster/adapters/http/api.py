"""Talk to llama-server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import httpx

from ggufcluster.errors import HeadError

if TYPE_CHECKING:
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
        self._client = httpx.Client(base_url=root, headers=headers, timeout=_SHORT, trust_env=False)

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
            raise HeadError(f"{self._root}{path}: {_words(error)}") from error


def _reason(answer: httpx.Response) -> str:
    try:
        return f"{answer.status_code}: {answer.json()['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return f"{answer.status_code}: {answer.text[:200]}"


def _words(error: Exception) -> str:
    return "gave no answer in time" if isinstance(error, httpx.TimeoutException) else str(error)
