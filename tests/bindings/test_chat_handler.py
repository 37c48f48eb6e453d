"""Requests and answers of chats in this process, with a pretended model and reader."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.adapters.chat_library import AnswerState
from ggufcluster.bindings.chat_handler import ChatHandler
from ggufcluster.bindings.chat_request import request_body
from ggufcluster.errors import ChatRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGES = [{"role": "user", "content": "Hello"}]
CALL = {"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


class FakeAnswer:
    """A reader that makes a delta of each text, and a call of the text ``CALL``."""

    def __init__(self, *, unreadable: bool = False) -> None:
        self.asked = {"prompt": "P", "stop": ["S"], "preserved_tokens": ["<c>", "two words"]}
        self.read_so_far: list[tuple[str, AnswerState]] = []
        self.unreadable = unreadable

    def read(self, text: str, state: AnswerState) -> dict[str, Any]:
        """Read on."""
        self.read_so_far.append((text, state))
        if self.unreadable:
            raise ChatRequestError("another form")
        deltas = [{"tool_calls": [CALL]} if text == "CALL" else {"content": text}] if text else []
        said = "".join(text for text, _ in self.read_so_far)
        calls = {"tool_calls": [CALL]} if "CALL" in said else {}
        message = {"role": "assistant", "content": said.replace("CALL", ""), **calls}
        return {"deltas": deltas} | ({"message": message} if state else {})

    def give_up(self) -> dict[str, Any]:
        """Return what was written."""
        said = "".join(text for text, _ in self.read_so_far)
        return {"deltas": [{"content": said}], "message": {"role": "assistant", "content": said}}


class FakeLlama:
    """A model that writes given pieces.

    Attributes:
        body: The request that was prepared.
        options: Those of the completion.
        spelled: Control tokens that are spelled out now.
        closed: Whether the stream was closed.
    """

    def __init__(self, *pieces: str, finish: str = "stop", unreadable: bool = False) -> None:
        self.pieces, self.finish = pieces, finish
        self.answer = FakeAnswer(unreadable=unreadable)
        self.body: dict[str, Any] = {}
        self.options: dict[str, Any] = {}
        self.spelled: tuple[int, ...] = ()
        self.spelled_while_writing: set[tuple[int, ...]] = set()
        self.closed = False

    def prepare(self, _template: object, body: dict[str, Any]) -> FakeAnswer:
        """Keep a request."""
        self.body = body
        return self.answer

    def tokenize(self, text: bytes, *, add_bos: bool, special: bool) -> list[int]:
        """Give one token for what is one word."""
        assert special
        return (
            [int(add_bos), *range(1, len(text.split()) + 1)]
            if add_bos
            else [*range(1, len(text.split()) + 1)]
        )

    @contextlib.contextmanager
    def spelling(self, tokens: list[int]) -> Iterator[None]:
        """Spell control tokens out."""
        self.spelled = tuple(tokens)
        yield
        self.spelled = ()

    def create_completion(self, **options: Any) -> Any:
        """Write."""
        self.options = options
        return (
            self._stream() if options["stream"] else self._piece("".join(self.pieces), whole=True)
        )

    def _stream(self) -> Iterator[dict[str, Any]]:
        try:
            for text in self.pieces:
                self.spelled_while_writing.add(self.spelled)
                yield self._piece(text)
            yield self._piece("", whole=True)
        finally:
            self.closed = True

    def _piece(self, text: str, *, whole: bool = False) -> dict[str, Any]:
        choice = {"text": text, "logprobs": None, "finish_reason": self.finish if whole else None}
        usage = {"usage": {"total_tokens": 3}} if whole else {}
        return {"id": "cmpl-1", "created": 5, "model": "m", "choices": [choice], **usage}


def ask(llama: FakeLlama, handler: ChatHandler | None = None, **options: Any) -> Any:
    """Ask as llama_cpp would."""
    template: Any = None
    model: Any = llama
    return (handler or ChatHandler(template))(llama=model, messages=MESSAGES, **options)


def test_a_whole_answer_has_openais_form() -> None:
    """Message, finish reason and usage stand where clients look for them."""
    llama = FakeLlama("Hi", "CALL")
    found = ask(llama, tools=[{"type": "function"}], temperature=0.5, max_tokens=9)
    assert (found["id"], found["object"], found["model"]) == ("chatcmpl-1", "chat.completion", "m")
    choice = found["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {"role": "assistant", "content": "Hi", "tool_calls": [CALL]}
    assert found["usage"] == {"total_tokens": 3}
    assert (llama.options["temperature"], llama.options["max_tokens"]) == (0.5, 9)
    assert llama.options["stop"] == ["S"]
    assert llama.options["grammar"] is llama.answer
    assert "tools" not in llama.options


def test_a_stream_gives_role_then_deltas_then_the_reason() -> None:
    """Control tokens of the answer are spelled out only while the model writes."""
    llama = FakeLlama("Hi", "CALL")
    parts = []
    for part in ask(llama, stream=True):
        assert llama.spelled == ()
        parts.append(part)
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas == [{"role": "assistant"}, {"content": "Hi"}, {"tool_calls": [CALL]}, {}]
    reasons = [part["choices"][0]["finish_reason"] for part in parts]
    assert reasons == [None, None, None, "tool_calls"]
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert llama.spelled_while_writing == {(1,)}  # "two words" is no one token


def test_a_stream_that_is_closed_ends_the_completion() -> None:
    """Nothing is computed for an answer that nobody reads."""
    llama = FakeLlama("a", "b", "c")
    parts = ask(llama, stream=True)
    next(parts)
    parts.close()
    assert llama.closed


@pytest.mark.parametrize("stream", [False, True])
def test_the_limit_is_told_to_the_reader(*, stream: bool) -> None:
    """A cut answer ends with ``length``, whatever was called."""
    llama = FakeLlama("CALL", finish="length")
    found = ask(llama, stream=stream)
    last = list(found)[-1] if stream else found
    assert last["choices"][0]["finish_reason"] == "length"
    assert llama.answer.read_so_far[-1][1] is AnswerState.CUT


@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_read_comes_back_as_it_was_written(*, stream: bool) -> None:
    """Nothing that the model wrote is lost."""
    found = ask(FakeLlama("odd ", "text", unreadable=True), stream=stream)
    if stream:
        text = "".join(part["choices"][0]["delta"].get("content", "") for part in found)
    else:
        text = found["choices"][0]["message"]["content"]
    assert text == "odd text"


def test_a_grammar_of_the_user_is_kept() -> None:
    """It binds the model, and the engine hears of it: with tools it refuses."""
    grammar: Any = type("Grammar", (), {"_grammar": "root ::= x"})()
    llama = FakeLlama("x")
    ask(llama, grammar=grammar)
    assert llama.options["grammar"] is grammar
    assert llama.body["grammar"] == "root ::= x"


def test_the_request_holds_what_was_asked_for() -> None:
    """Older forms become tools, our own options stand beside them, and nothing is null."""
    body = request_body(
        MESSAGES,
        {"reasoning_effort": "none", "chat_template_kwargs": {"a": 1}},
        functions=[{"name": "f"}],
        function_call={"name": "f"},
        tools=None,
        response_format=None,
        stop="x",
    )
    assert body == {
        "messages": MESSAGES,
        "stop": "x",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "reasoning_effort": "none",
        "chat_template_kwargs": {"a": 1},
    }
    assert request_body(MESSAGES, {}, function_call="auto")["tool_choice"] == "auto"


def test_shares_of_tokens_are_given_in_the_form_of_chats() -> None:
    """Logprobs of a completion are turned round."""
    llama = FakeLlama("Hi")
    shares = {"tokens": ["Hi"], "token_logprobs": [-0.5], "top_logprobs": [{"Hi": -0.5, "Ho": -2}]}
    real = llama._piece
    llama._piece = lambda text, **more: _with_shares(real(text, **more), shares)  # type: ignore[method-assign]
    found = ask(llama, logprobs=True, top_logprobs=2)
    assert llama.options["logprobs"] == 2
    (token,) = found["choices"][0]["logprobs"]["content"]
    assert (token["token"], token["logprob"], len(token["top_logprobs"])) == ("Hi", -0.5, 2)


def _with_shares(piece: dict[str, Any], shares: dict[str, Any]) -> dict[str, Any]:
    piece["choices"][0]["logprobs"] = shares
    return piece


def test_functions_are_called_in_their_own_form() -> None:
    """Who asks with functions finds the first call as one, too; its result is that of a tool."""
    function = CALL["function"]
    asked: Any = {"functions": [{"name": "f"}]}
    message = ask(FakeLlama("CALL"), **asked)["choices"][0]["message"]
    assert (message["function_call"], message["tool_calls"]) == (function, [CALL])
    parts = [part["choices"][0]["delta"] for part in ask(FakeLlama("CALL"), stream=True, **asked)]
    assert parts[1] == {"tool_calls": [CALL], "function_call": function}
    assert parts[2] == {}

    past = [
        *MESSAGES,
        {"role": "assistant", "content": None, "function_call": function},
        {"role": "function", "name": "f", "content": "sunny"},
    ]
    told = request_body(past, {}, **asked)["messages"]
    assert told[:-2] == MESSAGES
    call, result = told[-2:]
    assert [one["function"] for one in call["tool_calls"]] == [function]
    assert "function_call" not in call
    assert (result["role"], result["tool_call_id"]) == ("tool", call["tool_calls"][0]["id"])


def test_messages_may_be_objects_of_openai() -> None:
    """What `create_chat_completion_openai_v1` answered can stand in the next conversation."""
    message = SimpleNamespace(
        model_dump=lambda *, exclude_none: {"role": "assistant", "content": str(exclude_none)}
    )
    assert request_body([message, "odd"], {})["messages"] == [
        {"role": "assistant", "content": "True"},
        "odd",
    ]
