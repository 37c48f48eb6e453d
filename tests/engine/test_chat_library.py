"""Every case of the tool-call corpus through the library that `Llama` reads with, without a model.

The same cases go end to end through llama-server in test_toolcalls.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.adapters.chat_library import AnswerState, ChatLibrary, ChatTemplate
from ggufcluster.core.template_style import Style
from ggufcluster.core.toolcall_answer import Answer, mismatches, openai_answer, openai_stream
from ggufcluster.core.toolcall_case import Case, written_text
from ggufcluster.core.toolcall_request import Way, first_request
from ggufcluster.core.toy_vocabulary import THINK_START
from ggufcluster.errors import ChatRequestError
from ggufcluster.workflows.choose_template import read_scores
from ggufcluster.workflows.templates import FoundTemplate, make_style
from ggufcluster.workflows.toolcalls import read_corpus

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

DATA = Path(__file__).parents[1] / "data"
CORPUS = read_corpus(DATA / "toolcalls")
KNOWN: dict[str, list[str]] = json.loads((DATA / "toolcalls" / "known-failures.json").read_text())
SHAPE = (DATA / "templates" / "m3-shape.jinja").read_text()
TOOLS = next(case.tools for case in CORPUS if case.tools)


@pytest.fixture(scope="module")
def library(engine: Engine) -> ChatLibrary:
    """The engine's chat library."""
    return ChatLibrary(Path(engine.bin))


@pytest.fixture(scope="module")
def native(library: ChatLibrary) -> ChatTemplate:
    """MiniMax-M3's template in native style."""
    return library.open(make_style(FoundTemplate(SHAPE, "/m3.gguf"), Style.NATIVE))


def written(case: Case, style: Style, prompt: str) -> tuple[str, AnswerState]:
    """What the model writes for a case after a prompt, to where the limit strikes."""
    text = written_text(case, style)
    if prompt.endswith(THINK_START):
        text = text.removeprefix(THINK_START)
    if case.cut_after is None:
        return text, AnswerState.ENDED
    return text[: text.index(case.cut_after) + len(case.cut_after)], AnswerState.CUT


def put(template: ChatTemplate, case: Case, style: Style, way: Way) -> Answer:
    """Put a case and return what a client would get."""
    answer = template.ask(first_request(case, way, limit=None))
    text, state = written(case, style, answer.asked["prompt"])
    if way.streamed:
        return openai_stream(_streamed(answer, text, state))
    message = answer.read(text, state)["message"]
    for number, call in enumerate(message.get("tool_calls", ())):
        call.setdefault("id", str(number))
    return openai_answer({"choices": [{"message": message, "finish_reason": case.finish}]})


def _streamed(answer: Any, text: str, state: AnswerState) -> Any:
    """Yield what a stream of three letters at a time gives."""
    for start in range(0, len(text), 3):
        for delta in answer.read(text[start : start + 3], AnswerState.GOES_ON)["deltas"]:
            yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last = answer.read("", state)
    for delta in last["deltas"]:
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    calls = last["message"].get("tool_calls")
    finish = "length" if state is AnswerState.CUT else "tool_calls" if calls else "stop"
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}


@pytest.mark.parametrize("style", Style, ids=lambda style: style.value)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_it_reads_what_llama_server_reads(
    library: ChatLibrary, style: Style, *, streamed: bool
) -> None:
    """Text, reasoning, calls and their arguments come out as the corpus says."""
    template = library.open(make_style(FoundTemplate(SHAPE, "/m3.gguf"), style))
    cases = [case for case in CORPUS if case.name not in KNOWN[style.value]]
    wrong = []
    for case in cases:
        for choice in case.choices:
            found = put(template, case, style, Way("openai", choice, streamed=streamed))
            wrong += [f"{case.name}: {failure}" for failure in mismatches(case, found, style)]
    assert wrong == []
    assert len(cases) == read_scores()[style.value]


def test_a_request_shapes_the_prompt(native: ChatTemplate) -> None:
    """Thinking, in every way that it is asked for, and tools reach the prompt."""
    ask = {"messages": [{"role": "user", "content": "Hello"}]}
    wishes: dict[str, dict[str, Any]] = {
        "plain": {},
        "none": {"reasoning_effort": "none"},
        "off": {"enable_thinking": False},
        "kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
        "high": {"reasoning_effort": "high"},
        "tools": {"tools": list(TOOLS)},
    }
    prompts = {name: native.ask(ask | more).asked["prompt"] for name, more in wishes.items()}
    assert prompts["none"] == prompts["off"] == prompts["kwargs"] != prompts["plain"]
    assert prompts["none"].endswith("</mm:think>")
    assert prompts["high"].endswith("<mm:think>")
    assert TOOLS[0]["function"]["name"] in prompts["tools"]
    assert TOOLS[0]["function"]["name"] not in prompts["plain"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "messages"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"role": "user", "content": 3}]}, "content"),
        (
            {
                "messages": [{"role": "user", "content": "x"}],
                "tool_choice": {"type": "function", "function": {"name": "nowhere"}},
            },
            "nowhere",
        ),
        ({"messages": [], "response_format": {"type": "xml"}}, "response_format"),
    ],
)
def test_a_bad_request_is_an_exception(
    native: ChatTemplate, body: dict[str, Any], told: str
) -> None:
    """What cannot be served says why; nothing reaches the interpreter as a crash."""
    with pytest.raises(ChatRequestError, match=told):
        native.ask(body)


def test_a_template_that_cannot_be_read_is_an_exception(library: ChatLibrary) -> None:
    """A template with an error says so when it is opened."""
    with pytest.raises(ChatRequestError, match="cannot be served"):
        library.open("{% for x in %}")


def test_any_text_can_be_read(native: ChatTemplate) -> None:
    """Zero bytes, quotes and letters beyond ASCII come back as they were written."""
    text = 'nul \0 quote " snow \u2603 \U0001f600 end'
    answer = native.ask({"messages": [{"role": "user", "content": "x"}]})
    assert answer.read(text, AnswerState.ENDED)["message"]["content"] == text


def test_nothing_is_printed(native: ChatTemplate, capfd: pytest.CaptureFixture[str]) -> None:
    """What llama-server would log stays unsaid; the model is told of an image that is left out."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = native.ask({"messages": [{"role": "user", "content": [picture]}]}).asked
    assert "An image was left out" in asked["prompt"]
    with pytest.raises(ChatRequestError):
        native.ask({})
    assert capfd.readouterr() == ("", "")
