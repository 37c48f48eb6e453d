"""Turns of a chat: a scripted server stands in for the real one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.adapters.tool_file import ToolResult
from ggufcluster.core.chat_stream import Pace
from ggufcluster.errors import HeadError
from ggufcluster.workflows.chat import (
    MOST_ROUNDS,
    Answered,
    Called,
    Chat,
    Reading,
    Remarked,
    Returned,
    Said,
    Stopped,
    Thought,
    Tools,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.toolcall_answer import AnswerCall

TIMINGS: dict[str, Any] = {"cache_n": 0, "prompt_n": 5, "predicted_n": 4}
TIMINGS |= {"predicted_ms": 100, "predicted_per_second": 40}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One event."""
    return {"choices": [{"delta": fields, "finish_reason": finish}], "timings": TIMINGS}


def call(index: int = 0, arguments: str = "{}") -> dict[str, Any]:
    """An event with a whole call."""
    function = {"name": f"f{index}", "arguments": arguments}
    return delta(tool_calls=[{"index": index, "id": f"id{index}", "function": function}])


STOP = delta("stop")
TWO = ("user", "assistant")
CALLS = delta("tool_calls")


@dataclass
class Server:
    """An API that streams one script after the other; an exception in one is raised there."""

    scripts: list[list[Any]]
    props: Any = field(default_factory=dict)
    state: str = "ok"
    asked: list[list[dict[str, Any]]] = field(default_factory=list)
    closed: int = 0

    def health(self) -> str:
        """Tell the state."""
        return self.state

    def get(self, path: str) -> Any:
        """Tell the properties."""
        assert path == "/props"
        if self.props is None:
            raise HeadError("no such page")
        return self.props

    def post(self, path: str, body: dict[str, Any], *, timeout: float) -> Any:
        """Never asked for."""
        raise AssertionError

    def stream(self, path: str, body: dict[str, Any], *, timeout: float) -> Iterator[Any]:
        """Play the next script."""
        assert path == "/v1/chat/completions"
        self.asked.append(json.loads(json.dumps(body["messages"])))
        try:
            for event in self.scripts.pop(0):
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            self.closed += 1


@dataclass
class Hand:
    """Runs calls and says which may run; what it is told to raise, it raises."""

    allowed: bool = True
    raises: BaseException | None = None
    ran: list[str] = field(default_factory=list)

    def run(self, name: str, arguments: str) -> ToolResult:
        """Run a call."""
        self.ran.append(f"{name} {arguments}")
        if self.raises:
            raise self.raises
        return ToolResult(f"result of {name}")

    def may_run(self, call: AnswerCall) -> bool:
        """Say whether it may."""
        return self.allowed

    def tools(self) -> Tools:
        """It as tools of a chat."""
        return Tools([{"type": "function"}], self.run, self.may_run)


def roles(chat: Chat) -> list[str]:
    """Who spoke, in order."""
    return [message["role"] for message in chat.conversation.messages]


def results(chat: Chat) -> list[str]:
    """The results of calls, in order."""
    messages = chat.conversation.messages
    return [message["content"] for message in messages if message["role"] == "tool"]


def test_an_answer_comes_in_pieces() -> None:
    """Progress, reasoning and text come as they are streamed, then the whole answer."""
    progress = {"prompt_progress": {"cache": 0, "processed": 2, "total": 5}, "choices": []}
    script = [progress, delta(reasoning_content="Hm"), delta(content="Hi"), STOP]
    server = Server([script], props={"default_generation_settings": {"n_ctx": 50}})
    chat = Chat(server)
    chat.connect()
    assert list(chat.ask("hello")) == [
        Reading(2, 5),
        Thought("Hm"),
        Said("Hi"),
        Answered("Hi", "Hm", 0, "stop", Pace(4, 40.0, 9, 50)),
    ]
    assert roles(chat) == ["user", "assistant"]
    assert server.closed == 1


def test_calls_run_until_there_are_none() -> None:
    """Two calls have two results in their order, and the answer after them ends the turn."""
    hand = Hand()
    server = Server([[call(0), call(1), CALLS], [delta(content="Done."), STOP]])
    chat = Chat(server, tools=hand.tools())
    events = list(chat.ask("go"))
    assert [type(event) for event in events] == [
        *(Answered, Called, Returned, Called, Returned),
        *(Said, Answered),
    ]
    assert hand.ran == ["f0 {}", "f1 {}"]
    assert results(chat) == ["result of f0", "result of f1"]
    assert [message["role"] for message in server.asked[1]] == ["user", "assistant", "tool", "tool"]


def test_what_is_not_allowed_is_not_run() -> None:
    """The model is told that the user did not allow it."""
    hand = Hand(allowed=False)
    chat = Chat(Server([[call(), CALLS], [STOP]]), tools=hand.tools())
    list(chat.ask("go"))
    assert hand.ran == []
    assert "did not allow" in results(chat)[0]


def test_a_call_without_tools_is_an_error_for_the_model() -> None:
    """A model that calls what nobody offered is told so and may answer."""
    chat = Chat(Server([[call(), CALLS], [delta(content="Sorry."), STOP]]))
    list(chat.ask("go"))
    assert "none was offered" in results(chat)[0]
    assert roles(chat)[-1] == "assistant"


def test_a_call_that_was_cut_off_is_not_run() -> None:
    """The token limit may have cut its arguments: nothing is run or asked again."""
    hand = Hand()
    server = Server([[call(0, '{"a": '), delta("length")]])
    chat = Chat(server, tools=hand.tools())
    list(chat.ask("go"))
    assert hand.ran == []
    assert "cut this call off" in results(chat)[0]
    assert len(server.asked) == 1


def test_a_model_that_never_stops_calling_is_stopped() -> None:
    """After many rounds the turn ends with a remark."""
    hand = Hand()
    chat = Chat(Server([[call(), CALLS]] * (MOST_ROUNDS + 1)), tools=hand.tools())
    events = list(chat.ask("go"))
    assert len(hand.ran) == MOST_ROUNDS
    assert isinstance(events[-1], Remarked)


def stopped(chat: Chat, question: str = "go") -> Stopped:
    """Put a question whose turn is stopped, and return how."""
    last = list(chat.ask(question))[-1]
    assert isinstance(last, Stopped)
    return last


def test_stopping_keeps_the_text_that_came() -> None:
    """The text is a message; a call that was on its way is none; the connection is closed."""
    server = Server([[delta(content="Half"), call(), KeyboardInterrupt()]])
    chat = Chat(server, tools=Hand().tools())
    assert stopped(chat).content == "Half"
    assert chat.conversation.messages[-1] == {"role": "assistant", "content": "Half"}
    assert server.closed == 1


def test_stopping_before_any_text_takes_the_question_back() -> None:
    """Reasoning alone is no answer."""
    chat = Chat(Server([[delta(reasoning_content="Hm"), KeyboardInterrupt()]]))
    assert stopped(chat).withdrawn
    assert chat.conversation.messages == []


def test_stopping_from_outside_closes_the_stream() -> None:
    """An interrupt that reaches the turn between two events ends it the same way."""
    server = Server([[delta(content="a"), delta(content="b"), STOP]])
    chat = Chat(server)
    turn = chat.ask("go")
    assert next(turn) == Said("a")
    assert isinstance(turn.throw(KeyboardInterrupt()), Stopped)
    assert list(turn) == []
    assert server.closed == 1
    assert roles(chat) == ["user", "assistant"]


def test_stopping_after_an_answer_does_not_repeat_it() -> None:
    """Once the answer is in the conversation, an interrupt adds nothing of it again."""
    chat = Chat(Server([[delta(content="Whole."), STOP]]))
    turn = chat.ask("go")
    while not isinstance(next(turn), Answered):
        pass
    turn.throw(KeyboardInterrupt())
    assert roles(chat) == ["user", "assistant"]


def test_stopping_a_tool_leaves_a_result_for_each_call() -> None:
    """The one that ran is told to be stopped, the next one not to be run."""
    hand = Hand(raises=KeyboardInterrupt())
    chat = Chat(Server([[call(0), call(1), CALLS]]), tools=hand.tools())
    assert not stopped(chat).withdrawn
    assert roles(chat) == ["user", "assistant", "tool", "tool"]
    first, second = results(chat)
    assert "while it ran" in first
    assert "not run" in second


@pytest.mark.parametrize(
    ("script", "words", "kept"),
    [
        ([HeadError("refused")], "refused", []),
        ([delta(content="Half"), HeadError("broke")], "broke", ["user", "assistant"]),
        ([delta(content="Half")], "ended in the middle", ["user", "assistant"]),
        ([], "ended in the middle", []),
        ([delta(tool_calls=[{"function": {"name": "f"}}])], "no index", []),
        ([{"choices": [3]}], "another form", []),
        ([["odd"]], "another form", []),
        ([delta(content="Half"), {"choices": [{"delta": {"content": 3}}]}], "form", [*TWO]),
    ],
)
def test_a_server_that_fails_leaves_a_sound_conversation(
    script: list[Any], words: str, kept: list[str]
) -> None:
    """The error passes; text that came is kept, and a question without any is taken back."""
    chat = Chat(Server([script, [STOP]]))
    with pytest.raises(HeadError, match=words):
        list(chat.ask("go"))
    assert roles(chat) == kept
    list(chat.ask("again"))
    assert roles(chat)[-1] == "assistant"


def test_a_failure_after_calls_keeps_them() -> None:
    """What tools did has happened: their results stay."""
    chat = Chat(Server([[call(), CALLS], [HeadError("gone")]]), tools=Hand().tools())
    with pytest.raises(HeadError):
        list(chat.ask("go"))
    assert roles(chat) == ["user", "assistant", "tool"]


def test_images_without_vision_are_told_once() -> None:
    """The first turn of a conversation says that images are left out; they are in no request."""
    server = Server([[STOP], [STOP], [STOP]])
    chat = Chat(server)
    first = list(chat.ask("look", ["data:image/png;base64,A"]))
    assert [type(event) for event in first] == [Remarked, Answered]
    assert not any(isinstance(event, Remarked) for event in chat.ask("and now?"))
    chat.resume(chat.conversation)
    assert any(isinstance(event, Remarked) for event in chat.ask("resumed"))
    assert "base64" not in json.dumps(server.asked)


def test_stopping_at_the_remark_takes_the_question_back() -> None:
    """An interrupt that comes before anything was sent leaves nothing behind."""
    chat = Chat(Server([]))
    turn = chat.ask("look", ["data:image/png;base64,A"])
    assert isinstance(next(turn), Remarked)
    assert turn.throw(KeyboardInterrupt()) == Stopped("", withdrawn=True, pace=Pace())
    assert chat.conversation.messages == []


def test_with_vision_they_are_sent() -> None:
    """A server that sees gets the image itself."""
    server = Server([[STOP]], props={"modalities": {"vision": True}})
    chat = Chat(server)
    chat.connect()
    assert not any(isinstance(e, Remarked) for e in chat.ask("look", ["data:image/png;base64,A"]))
    assert "base64" in json.dumps(server.asked)


def test_a_server_of_another_kind_is_taken() -> None:
    """Without the page of properties its facts are unknown, as long as it is well."""
    chat = Chat(Server([], props=None))
    chat.connect()
    assert chat.facts.context is None
    with pytest.raises(HeadError):
        Chat(Server([], props=None, state="loading")).connect()
