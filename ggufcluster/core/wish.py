"""What a user asks of `up`, every setting merged."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


# Instead of a number of tokens: as many as fit.
MAX_CONTEXT = "max"


@dataclass(frozen=True, slots=True)
class Wish:
    """One call of `up`; None leaves a choice to the model family and to what fits.

    Attributes:
        workers: As written: ``[user@]host[:ssh-port]``, ``local``, ``local:N``.
        model: First shard or None for the only downloaded model.
        context: Tokens per slot, or `MAX_CONTEXT`.
        parallel: Number of slots.
        kv_type: Type of the KV cache.
        ubatch: Tokens per ubatch.
        msa: Path of sparse attention: ``auto``, ``native``, ``generic`` or ``dense``.
        index_type: Type of the index keys of sparse attention: ``f16`` or ``q8_0``.
        template: Chat template file.
        template_style: ``auto``, ``native``, ``hybrid``, or ``own`` for the template as it is.
        host: Address on which the API listens.
        port: Port on which the API listens.
        api_key_file: File with API keys.
        extra: Further llama-server options.
        allow_public: Whether a worker may listen on a public address.
        drop_caches: Whether to free the page cache on every node first.
        tool_check: Whether one tool call must be proven.
        ready_seconds: Time for a worker to become ready.
        stall_seconds: Longest time of a load without progress.
    """

    workers: tuple[str, ...]
    model: str | None = None
    context: int | str | None = None
    parallel: int = 1
    kv_type: str | None = None
    ubatch: int | None = None
    msa: str = "auto"
    index_type: str = "f16"
    template: Path | None = None
    template_style: str = "auto"
    host: str = "127.0.0.1"
    port: int = 8080
    api_key_file: Path | None = None
    extra: tuple[str, ...] = ()
    allow_public: bool = False
    drop_caches: bool = False
    tool_check: bool = True
    ready_seconds: float = 60.0
    stall_seconds: float = 300.0

    def shape(self) -> str:
        """Return the part that decides what runs, as text to compare two calls by."""
        passing = ("drop_caches", "tool_check", "ready_seconds", "stall_seconds", "allow_public")
        fields = {name: value for name, value in asdict(self).items() if name not in passing}
        return json.dumps(fields, default=str, sort_keys=True)


def differences(one: str, other: str) -> tuple[str, ...]:
    """Name the settings in which two shapes differ: ``context 8192 instead of 4096``."""
    first: dict[str, Any] = json.loads(one)
    second: dict[str, Any] = json.loads(other)
    return tuple(
        f"{name} {_words(first.get(name))} instead of {_words(second.get(name))}"
        for name in sorted(first.keys() | second.keys())
        if first.get(name) != second.get(name)
    )


def _words(value: Any) -> str:
    if value in (None, []):
        return "unset"
    return " ".join(value) if isinstance(value, list) else str(value)
