"""What llama-server tells beside an answer."""

from __future__ import annotations

from typing import Any

import pytest

from ggufcluster.core.chat_stream import (
    Pace,
    ServerFacts,
    facts_of,
    pace_of,
    prompt_progress,
    request,
)

TIMINGS: dict[str, Any] = {"cache_n": 5, "prompt_n": 7, "predicted_n": 3}
TIMINGS |= {"predicted_ms": 100.0, "predicted_per_second": 30.0}


def test_a_request_asks_for_progress_and_speed() -> None:
    """It is streamed, its options are passed on, and no tools means no field for them."""
    body = request([{"role": "user", "content": "x"}], [], {"reasoning_effort": "none"})
    assert body["stream"]
    assert body["timings_per_token"]
    assert body["return_progress"]
    assert body["reasoning_effort"] == "none"
    assert "tools" not in body
    assert request([], [{"type": "function"}], {})["tools"] == [{"type": "function"}]


@pytest.mark.parametrize(
    ("event", "pace"),
    [
        ({}, Pace(context=100)),
        ({"timings": TIMINGS}, Pace(3, 30.0, 15, 100)),
        ({"usage": {"total_tokens": 9, "completion_tokens": 2}}, Pace(2, None, 9, 100)),
        ({"timings": {**TIMINGS, "predicted_n": 1}}, Pace(1, None, 13, 100)),
        ({"timings": {"cache_n": None}, "usage": {"total_tokens": "x"}}, Pace(context=100)),
        ({"timings": 3, "usage": None}, Pace(context=100)),
        ({"timings": {**TIMINGS, "predicted_per_second": 0}}, Pace(3, None, 15, 100)),
    ],
)
def test_speed_and_context_are_read(event: dict[str, Any], pace: Pace) -> None:
    """Timings and usage are read, of whatever form; what is not told stays unknown."""
    assert pace_of(event, Pace(context=100)) == pace


def test_what_is_known_stays_known() -> None:
    """An event without figures changes nothing."""
    assert pace_of({}, Pace(3, 30.0, 15, 100)) == Pace(3, 30.0, 15, 100)


@pytest.mark.parametrize(
    ("pace", "line"),
    [
        (Pace(3, 12.34, 1500, 30000), "12.3 tokens/s, 1,500 of 30,000 tokens of context (5 %)"),
        (Pace(used=15), "15 tokens of context"),
        (Pace(context=100), ""),
    ],
)
def test_the_status_line_tells_what_is_known(pace: Pace, line: str) -> None:
    """Speed, and context used of how much; nothing is made up."""
    assert pace.line() == line


@pytest.mark.parametrize(
    ("props", "facts"),
    [
        (
            {"default_generation_settings": {"n_ctx": 9}, "modalities": {"vision": True}},
            ServerFacts(9, vision=True),
        ),
        ({"modalities": {"vision": "yes"}}, ServerFacts()),
        ({"default_generation_settings": [], "modalities": None}, ServerFacts()),
        ([], ServerFacts()),
    ],
)
def test_facts_of_a_server_are_read(props: Any, facts: ServerFacts) -> None:
    """Whatever form they have: what is not told is unknown, and vision absent."""
    assert facts_of(props) == facts


@pytest.mark.parametrize(
    ("event", "progress"),
    [
        ({"prompt_progress": {"cache": 10, "processed": 30, "total": 110}}, (20, 100)),
        ({"prompt_progress": {"processed": 30}}, None),
        ({"prompt_progress": None}, None),
        ({}, None),
    ],
)
def test_progress_of_the_prompt_leaves_the_cache_out(
    event: dict[str, Any], progress: tuple[int, int] | None
) -> None:
    """Tokens that were in the cache took no time and count in neither number."""
    assert prompt_progress(event) == progress
