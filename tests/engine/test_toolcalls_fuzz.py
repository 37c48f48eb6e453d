"""What the template writes of a call, the reader makes the same call of: tools nobody thought of.

The turns were drawn, by `drawn_turns.py`; `tool_schemas.py` has what tools look like.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.adapters.chat_library import Answer, AnswerState, ChatLibrary, ChatTemplate
from ggufcluster.core.chat_template import render
from ggufcluster.core.template_conversations import Conversation, Renderer, context_of, request_of
from ggufcluster.core.template_style import Style
from ggufcluster.core.toolcall_answer import OpenAiMerge, openai_answer, typed
from ggufcluster.workflows.templates import FoundTemplate, make_style
from tests.engine.drawn_turns import WHITE_SPACE, kept
from tests.engine.tool_schemas import expressible, read_as

if TYPE_CHECKING:
    from collections.abc import Callable

    from ggufcluster.core.engine import Engine
    from ggufcluster.core.toolcall_answer import Answer as Read
    from tests.engine.drawn_turns import Turn

pytestmark = pytest.mark.engine

SHAPE = (Path(__file__).parents[1] / "data" / "templates" / "m3-shape.jinja").read_text()
THINK_END = "</mm:think>"
_TURN, _TURN_END = "]~b]ai\n", "[e~[\n]~b]user\n"


@pytest.fixture(scope="module")
def library(engine: Engine) -> ChatLibrary:
    """The engine's chat library."""
    return ChatLibrary(Path(engine.bin))


def conversation(turn: Turn) -> Conversation:
    """Each block as a message of an earlier turn, so that the template writes it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "?"}]
    for number, (content, calls) in enumerate(turn.blocks):
        message = {"role": "assistant", "content": content, "tool_calls": _told(calls)}
        if not number and turn.thought:
            message["reasoning_content"] = turn.thought
        messages += [message, {"role": "user", "content": f"END{number}"}]
    return Conversation("a turn", messages, turn.offered, generate=False)


def _told(calls: tuple[tuple[str, Any, Any], ...]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "id": f"c{n}", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments, _) in enumerate(calls)
    ]


def written(theirs: str, ours: str, turn: Turn) -> str:
    """What the model writes, taken from the prompts of the engine and of jinja2, which agree."""
    parts: list[str] = []
    rest = theirs
    for number in range(len(turn.blocks)):
        _, _, rest = rest.partition(_TURN)
        part, _, rest = rest.partition(f"{_TURN_END}END{number}")
        assert f"{_TURN}{part}{_TURN_END}END{number}" in ours
        parts.append(part.removeprefix(THINK_END) if number else part)
    return "".join(parts) + turn.after


def whole(ask: Callable[[], Answer], text: str, state: AnswerState) -> Read:
    """What a client gets at once."""
    message = ask().read(text, state)["message"]
    return openai_answer({"choices": [{"message": message, "finish_reason": ""}]})


def streamed(
    ask: Callable[[], Answer], text: str, state: AnswerState, cuts: tuple[int, ...]
) -> Read:
    """What a client gets in pieces."""
    answer, merge, start = ask(), OpenAiMerge(), 0
    reads = []
    for end in (*cuts, len(text)):
        reads.append(answer.read(text[start:end], AnswerState.GOES_ON))
        start = max(start, min(end, len(text)))
    for read in (*reads, answer.read("", state)):
        for delta in read["deltas"]:
            merge.add({"choices": [{"delta": delta, "finish_reason": None}]})
    return merge.answer


def shown(read: Read) -> tuple[str, str, list[tuple[str, str]]]:
    """All but the ids, which differ between two answers."""
    return (read.reasoning, read.content, [(call.name, call.arguments) for call in read.calls])


def check(template: ChatTemplate, style: Style, turn: Turn, spoken: str) -> None:
    """Read what the model wrote, in every way."""
    question = [{"role": "user", "content": "?"}]
    body = {"messages": question, "tools": turn.offered, "tool_choice": turn.choice}

    def ask() -> Answer:
        return template.ask(body)

    read = whole(ask, spoken, AnswerState.ENDED)
    assert read.reasoning == turn.thought.lstrip(WHITE_SPACE)
    assert read.content == turn.content
    assert [call.name for call in read.calls] == [name for name, _, _ in turn.calls]
    for call, (_, arguments, told) in zip(read.calls, turn.calls, strict=True):
        found, expected = json.loads(call.arguments), read_as(style, arguments, told)
        assert list(found) == list(expected)
        assert typed(found) == typed(expected)
    assert shown(streamed(ask, spoken, AnswerState.ENDED, turn.cuts)) == shown(read)
    cut = spoken[: turn.cuts[-1]] if turn.cuts else spoken
    for state in (AnswerState.ENDED, AnswerState.CUT):
        assert shown(streamed(ask, cut, state, turn.cuts)) == shown(whole(ask, cut, state))


@pytest.mark.parametrize("style", Style, ids=lambda style: style.value)
def test_what_the_template_writes_is_read(library: ChatLibrary, style: Style) -> None:
    """Calls, text and thinking come back as they were, whole, streamed and cut off."""
    text = make_style(FoundTemplate(SHAPE, "/m3.gguf"), style)
    template = library.open(text)
    told = [t for t in kept() if all(expressible(style, call[1]) for call in t.calls)]
    talks = [conversation(turn) for turn in told]
    ours = render(text, [context_of(talk, Renderer()) for talk in talks])
    for turn, talk, prompt in zip(told, talks, ours, strict=True):
        theirs = template.ask(request_of(talk)).asked["prompt"]
        check(template, style, turn, written(theirs, prompt.text, turn))
    assert len([call for turn in told for call in turn.calls]) > 200
