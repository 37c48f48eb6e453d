"""Merging answers the way clients do, and comparing them with a case."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ggufcluster.core.template_style import Style
from ggufcluster.core.toolcall_answer import (
    Answer,
    AnswerCall,
    AnswerFormError,
    OpenAiMerge,
    anthropic_answer,
    anthropic_stream,
    mismatches,
    openai_answer,
    openai_stream,
)
from ggufcluster.core.toolcall_case import Call, Case


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One event of OpenAI's stream."""
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def part(index: int, **function: str) -> dict[str, Any]:
    """A piece of a streamed call."""
    piece: dict[str, Any] = {"index": index, "function": function}
    return piece | ({"id": f"id{index}"} if "name" in function else {})


def case(**fields: Any) -> Case:
    """A case with one call of `f`."""
    defaults: dict[str, Any] = {
        "name": "x",
        "about": "x",
        "writes": "x",
        "calls": (Call("f", {"a": 1}),),
        "finish": "tool_calls",
    }
    return Case(**(defaults | fields))


def answer(arguments: str = '{"a": 1}', **fields: Any) -> Answer:
    """An answer with one call of `f`."""
    return Answer(calls=[AnswerCall("f", arguments, "id")], **({"finish": "tool_calls"} | fields))


def test_streamed_calls_merge_by_index() -> None:
    """Pieces of two calls that arrive by turns end up in their own calls."""
    merged = openai_stream(
        [
            delta(reasoning_content="th"),
            delta(reasoning_content="ink"),
            delta(content="Hi"),
            delta(tool_calls=[part(1, name="g", arguments="")]),
            delta(tool_calls=[part(0, name="f", arguments='{"a"')]),
            delta(tool_calls=[part(1, arguments="{}"), part(0, arguments=": 1}")]),
            delta("tool_calls"),
        ]
    )
    assert [(call.name, call.arguments) for call in merged.calls] == [
        ("f", '{"a": 1}'),
        ("g", "{}"),
    ]
    assert (merged.reasoning, merged.content, merged.finish) == ("think", "Hi", "tool_calls")


def test_an_event_tells_what_it_adds() -> None:
    """Merged one by one, each event gives its own pieces, and the answer holds all so far."""
    merge = OpenAiMerge()
    assert merge.add(delta(reasoning_content="th", content="H")) == ("th", "H")
    assert merge.add(delta(content="i \ud83d")) == ("", "i ?")
    assert merge.add(delta(tool_calls=[part(0, name="f", arguments='{"a"')])) == ("", "")
    assert merge.add({"choices": [], "usage": {}}) == ("", "")
    assert (merge.answer.reasoning, merge.answer.content) == ("th", "Hi ?")
    assert [call.arguments for call in merge.answer.calls] == ['{"a"']


@pytest.mark.parametrize(
    "events",
    [
        [delta(tool_calls=[{"function": {"name": "f"}}])],
        [delta(tool_calls=[part(0, name="f")]), delta(tool_calls=[part(0, name="f")])],
    ],
    ids=["without an index", "named twice"],
)
def test_a_stream_that_clients_stumble_over_is_refused(events: list[dict[str, Any]]) -> None:
    """A call without an index, or named twice, is an error of the stream."""
    with pytest.raises(AnswerFormError):
        openai_stream(events)


def test_whole_answers_of_both_dialects_read_alike() -> None:
    """The same message in two dialects gives the same answer."""
    function = {"name": "f", "arguments": '{"a": 1}'}
    message = {"reasoning_content": "r", "content": None, "tool_calls": [{"function": function}]}
    one = openai_answer({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    blocks = [
        {"type": "thinking", "thinking": "r"},
        {"type": "tool_use", "name": "f", "input": {"a": 1}, "id": ""},
    ]
    other = anthropic_answer({"content": blocks, "stop_reason": "tool_use"})
    assert (one.reasoning, one.calls, one.finish) == (other.reasoning, other.calls, other.finish)


def block_events(
    index: int, block: dict[str, Any], *deltas: dict[str, Any]
) -> list[dict[str, Any]]:
    """The events of one block of an Anthropic-style stream."""
    start = {"type": "content_block_start", "index": index, "content_block": block}
    return [start, *({"type": "content_block_delta", "index": index, "delta": d} for d in deltas)]


def test_streamed_blocks_merge_by_index() -> None:
    """Thinking, text and a call come together from their deltas."""
    tool = {"type": "tool_use", "name": "f", "id": "t1"}
    merged = anthropic_stream(
        [
            {"type": "message_start", "message": {}},
            *block_events(
                0,
                {"type": "thinking", "thinking": ""},
                {"type": "thinking_delta", "thinking": "r"},
                {"type": "signature_delta", "signature": ""},
            ),
            *block_events(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "hi"}),
            *block_events(
                2,
                tool,
                {"type": "input_json_delta", "partial_json": '{"a"'},
                {"type": "input_json_delta", "partial_json": ": 1}"},
            ),
            {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
        ]
    )
    assert (merged.reasoning, merged.content, merged.finish) == ("r", "hi", "length")
    assert merged.calls == [AnswerCall("f", '{"a": 1}', "t1")]


@pytest.mark.parametrize(
    "events",
    [
        block_events(0, {"type": "text", "text": ""}) * 2,
        block_events(0, {"type": "text"}, {"type": "input_json_delta", "partial_json": "{"}),
        block_events(0, {"type": "text"}, {"type": "text_delta", "text": "x"})[1:],
    ],
    ids=["started twice", "of another kind", "never started"],
)
def test_blocks_that_clients_stumble_over_are_refused(events: list[dict[str, Any]]) -> None:
    """A block that starts twice, or a delta that fits no block, is an error of the stream."""
    with pytest.raises(AnswerFormError):
        anthropic_stream(events)


@pytest.mark.parametrize(
    ("got", "told"),
    [
        (answer(), ""),
        (answer('{"a": true}'), "call 1 has"),
        (answer('{"a": "1"}'), "call 1 has"),
        (answer('{"a": 1'), "call 1 has"),
        (answer(reasoning="odd"), "reasoning is"),
        (answer(content=" left over "), "content is"),
        (answer(content=" \n"), ""),
        (answer(finish="stop"), "finish is"),
        (Answer(finish="tool_calls"), "calls are []"),
        (Answer(calls=[AnswerCall("f", '{"a": 1}')], finish="tool_calls"), "ids of their own"),
    ],
)
def test_every_difference_is_told(got: Answer, told: str) -> None:
    """An answer is compared in every field; white space round content does not count."""
    found = mismatches(case(), got, Style.NATIVE)
    assert bool(found) == bool(told)
    assert told in "; ".join(found)


@pytest.mark.parametrize(
    ("arguments", "closed", "fits"),
    [
        ('{"a": "one tw', False, True),
        ('{"a":', False, True),
        ("", False, True),
        ('{"a": "one two"}', False, False),
        ('{"a": "two', False, False),
        ("{}", False, False),
        ("{}", True, True),
        ('{"a": "one"}', True, True),
        ('{"b": "one"}', True, False),
    ],
)
def test_a_call_that_was_cut_stays_open(arguments: str, *, closed: bool, fits: bool) -> None:
    """Cut arguments are a beginning that is not valid JSON, unless the API cannot leave them so."""
    wanted = case(calls=(Call("f", {"a": "one two three"}),), finish="length")
    got = answer(arguments, finish="length", closed=closed)
    assert (mismatches(wanted, got, Style.NATIVE) == ()) == fits


def test_strict_answers_are_compared_as_json() -> None:
    """White space inside a strict answer does not count, its values do."""
    wanted = case(calls=(), finish="stop", content='{"a": [1]}', schema={"type": "object"})
    assert (
        mismatches(wanted, Answer(content=json.dumps({"a": [1]}), finish="stop"), Style.NATIVE)
        == ()
    )
    assert mismatches(wanted, Answer(content='{"a": [2]}', finish="stop"), Style.NATIVE)
    assert mismatches(wanted, Answer(content="no JSON", finish="stop"), Style.NATIVE)
