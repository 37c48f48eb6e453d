"""A small OpenAI-compatible client, for where the `openai` package is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ggufcluster.adapters.http.api import HttpApi

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.secret import Secret

# What servers leave away; everything else that is missing is a typing error.
_OPTIONAL = frozenset(
    "content tool_calls reasoning_content refusal function_call finish_reason logprobs usage"
    " timings role name id function arguments type index".split()
)


class Answer:
    """JSON with attributes: ``answer.choices[0].message.content``.

    What a server may leave out is None then; any other name that is not there raises
    AttributeError.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        if name in self._fields:
            return _dressed(self._fields[name])
        if name in _OPTIONAL:
            return None
        raise AttributeError(f"the answer has no {name!r}, only {', '.join(self._fields)}")

    def model_dump(self) -> dict[str, Any]:
        """Return the JSON as it came."""
        return self._fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and other.model_dump() == self._fields

    def __hash__(self) -> int:
        return hash(repr(self._fields))

    def __repr__(self) -> str:
        return f"Answer({self._fields!r})"


class SmallClient:
    """Speak to a llama-server with the calls of the `openai` package.

    Args:
        base_url: Root of the API, with ``/v1``.
        key: API key, if the server wants one.
        timeout: Seconds to wait for an answer or for each piece of it.
    """

    def __init__(self, base_url: str, *, key: Secret | None = None, timeout: float) -> None:
        self._api = HttpApi(base_url.rstrip("/"), key=key)
        self.chat = _Chat(self._api, timeout)
        self.completions = _Call(self._api, "/completions", timeout)
        self.embeddings = _Call(self._api, "/embeddings", timeout)
        self.models = _Models(self._api)

    def close(self) -> None:
        """Close its connections."""
        self._api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Call:
    """One path of the API."""

    def __init__(self, api: HttpApi, path: str, timeout: float) -> None:
        self._api = api
        self._path = path
        self._timeout = timeout

    def create(self, *, timeout: float | None = None, stream: bool = False, **fields: Any) -> Any:
        """Send a request; return the answer, or an iterator of its pieces if `stream`.

        Raises:
            HeadError: There was no answer, or it was an error.
        """
        extra = fields.pop("extra_body", None) or {}
        messages = fields.get("messages")
        if messages is not None:
            fields["messages"] = [_plain(message) for message in messages]
        body = {"model": "", **fields, **extra, "stream": stream}
        seconds = timeout or self._timeout
        if stream:
            return self._pieces(body, seconds)
        return Answer(self._api.post(self._path, body, timeout=seconds))

    def _pieces(self, body: dict[str, Any], seconds: float) -> Iterator[Answer]:
        for event in self._api.stream(self._path, body, timeout=seconds):
            yield Answer(event)


class _Chat:
    def __init__(self, api: HttpApi, timeout: float) -> None:
        self.completions = _Call(api, "/chat/completions", timeout)


class _Models:
    def __init__(self, api: HttpApi) -> None:
        self._api = api

    def list(self) -> Answer:
        """Return the models that are served; raises `HeadError`."""
        return Answer(self._api.get("/models"))


def _dressed(value: Any) -> Any:
    if isinstance(value, dict):
        return Answer(value)
    return [_dressed(item) for item in value] if isinstance(value, list) else value


def _plain(message: Any) -> Any:
    """Return a message of an earlier answer as JSON, so that it can be sent back as it is."""
    return message.model_dump() if hasattr(message, "model_dump") else message
