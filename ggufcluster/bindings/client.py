"""An OpenAI-compatible client of a head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ggufcluster.core.secret import Secret

# The head asks for no key then, but the openai package insists on one.
_NO_KEY = "none"


class Client(Protocol):
    """What both clients have; calls and answers are spelled as in the `openai` package.

    Attributes:
        chat: ``chat.completions.create(messages=..., tools=..., stream=..., ...)``.
        completions: ``completions.create(prompt=..., ...)``.
        embeddings: ``embeddings.create(input=...)``.
        models: ``models.list()``.
    """

    @property
    def chat(self) -> Any: ...  # noqa: D102 - the class tells
    @property
    def completions(self) -> Any: ...  # noqa: D102
    @property
    def embeddings(self) -> Any: ...  # noqa: D102
    @property
    def models(self) -> Any: ...  # noqa: D102
    def close(self) -> None:
        """Close its connections."""


def open_client(base_url: str, key: Secret | None, *, timeout: float) -> Client:
    """Open a client; the `openai` package's if that is installed.

    Args:
        base_url: Root of the API, with ``/v1``.
        key: API key, if the head wants one.
        timeout: Seconds to wait for an answer or for each piece of it.
    """
    try:
        from openai import OpenAI  # noqa: PLC0415 - it may be missing
    except ImportError:
        from ggufcluster.adapters.http.small_client import SmallClient  # noqa: PLC0415 - slow

        return SmallClient(base_url, key=key, timeout=timeout)
    client: Client = OpenAI(
        base_url=base_url, api_key=key.reveal() if key else _NO_KEY, timeout=timeout
    )
    return client
