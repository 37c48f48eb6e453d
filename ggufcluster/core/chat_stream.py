"""What llama-server tells beside the answer while it streams: progress, speed, context used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Both are llama-server's own: without them the speed of a stopped answer would be unknown.
_EXTRAS = {"timings_per_token": True, "return_progress": True}


@dataclass(frozen=True, slots=True)
class Pace:
    """How an answer went.

    Attributes:
        tokens: Tokens of the answer, None if unknown.
        tokens_per_second: Speed of writing, None if unknown.
        used: Tokens of the context that prompt and answer fill, None if unknown.
        context: Tokens of the context, None if unknown.
    """

    tokens: int | None = None
    tokens_per_second: float | None = None
    used: int | None = None
    context: int | None = None

    def line(self) -> str:
        """Say it in a line, leaving out what is unknown; empty if all is."""
        words = []
        if self.tokens_per_second is not None:
            words.append(f"{self.tokens_per_second:.1f} tokens/s")
        if self.used is not None and self.context:
            share = 100 * self.used / self.context
            words.append(f"{self.used:,} of {self.context:,} tokens of context ({share:.0f} %)")
        elif self.used is not None:
            words.append(f"{self.used:,} tokens of context")
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known of a server: tokens of a slot's context, and whether it takes images."""

    context: int | None = None
    vision: bool = False


def request(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Make a streamed request that also tells progress and speed."""
    body: dict[str, Any] = {"messages": list(messages), "stream": True, **_EXTRAS, **options}
    body["stream_options"] = {"include_usage": True}
    if tools:
        body["tools"] = list(tools)
    return body


def facts_of(props: Any) -> ServerFacts:
    """Read the answer of `/props`; what is not in it is unknown."""
    if not isinstance(props, dict):
        return ServerFacts()
    settings, modalities = props.get("default_generation_settings"), props.get("modalities")
    context = settings.get("n_ctx") if isinstance(settings, dict) else None
    vision = modalities.get("vision") if isinstance(modalities, dict) else False
    return ServerFacts(context if isinstance(context, int) else None, vision is True)


def prompt_progress(event: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how many tokens of the prompt are read and how many there are, if it says so.

    Those that were in the cache count in neither.
    """
    progress = event.get("prompt_progress")
    try:
        cached = int(progress["cache"])  # type: ignore[index]
        return int(progress["processed"]) - cached, int(progress["total"]) - cached  # type: ignore[index]
    except (TypeError, LookupError, ValueError):
        return None


def pace_of(event: Mapping[str, Any], before: Pace) -> Pace:
    """Read timings (llama-server's) and usage (OpenAI's) of an event, if it has any."""
    timings, usage = event.get("timings"), event.get("usage")
    used, tokens, speed = before.used, before.tokens, before.tokens_per_second
    if isinstance(usage, dict):
        used = _number(usage.get("total_tokens"), used)
        tokens = _number(usage.get("completion_tokens"), tokens)
    if isinstance(timings, dict):
        parts = [timings.get(name) for name in ("cache_n", "prompt_n", "predicted_n")]
        if all(isinstance(part, int) for part in parts):
            used, tokens = sum(parts), parts[2]  # type: ignore[arg-type]
        # Of a single token there is no speed: the time between two tokens is what is measured.
        if tokens and tokens > 1 and timings.get("predicted_ms"):
            speed = _rate(timings.get("predicted_per_second"), speed)
    return Pace(tokens, speed, used, before.context)


def _number(value: Any, default: int | None) -> int | None:
    return value if isinstance(value, int) else default


def _rate(value: Any, default: float | None) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else default
