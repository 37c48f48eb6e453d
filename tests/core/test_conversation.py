"""The messages of a chat: a server takes them again whatever happened."""

from __future__ import annotations

import json

import pytest

from ggufcluster.core.conversation import (
    NOT_RUN,
    Conversation,
    ConversationFormError,
    from_json,
    said,
    to_json,
)
from ggufcluster.core.toolcall_answer import Answer, AnswerCall

IMAGE = "data:image/png;base64,AAAA"


def with_calls(*calls: AnswerCall) -> Conversation:
    """A conversation whose answer has calls."""
    conversation = Conversation()
    conversation.ask("q")
    conversation.answered(Answer(content="c", calls=list(calls)))
    return conversation


def roles(conversation: Conversation) -> list[str]:
    """Who spoke, in order."""
    return [message["role"] for message in conversation.messages]


def test_an_answer_goes_back_as_it_came() -> None:
    """Text, reasoning and calls of an answer are those of the message."""
    call = AnswerCall("f", '{"a": 1}', "id")
    assert said(Answer("why", "what", [call])) == {
        "role": "assistant",
        "content": "what",
        "reasoning_content": "why",
        "tool_calls": [
            {"id": "id", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        ],
    }
    assert said(Answer(content="x")) == {"role": "assistant", "content": "x"}


def test_every_call_has_a_result_at_once() -> None:
    """Before anything was run, each call has a result that says so; the real one replaces it."""
    first, second = AnswerCall("f", "{}", "a"), AnswerCall("g", "{}", "b")
    conversation = with_calls(first, second)
    assert roles(conversation) == ["user", "assistant", "tool", "tool"]
    conversation.returned(second, "done")
    assert [m["content"] for m in conversation.messages[2:]] == [NOT_RUN, "done"]
    with pytest.raises(ValueError, match="no call"):
        conversation.returned(AnswerCall("f", "{}", "z"), "x")


def test_results_go_to_the_last_answer() -> None:
    """Ids that come again in a later answer mean the later call."""
    call = AnswerCall("f", "{}", "a")
    conversation = with_calls(call)
    conversation.returned(call, "first")
    conversation.answered(Answer(calls=[AnswerCall("f", "{}", "a")]))
    conversation.returned(call, "second")
    results = [m["content"] for m in conversation.messages if m["role"] == "tool"]
    assert results == ["first", "second"]


def test_calls_without_ids_get_some() -> None:
    """Two calls without an id get different ones, and their results fit them."""
    calls = [AnswerCall("f", "{}"), AnswerCall("f", "{}")]
    messages = with_calls(*calls).messages
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in messages[2:]] == ids


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", "nonsense", "null"])
def test_arguments_that_no_server_reads_are_not_sent(arguments: str) -> None:
    """The message has an empty object instead; the call itself keeps what was written."""
    call = AnswerCall("f", arguments, "a")
    sent = with_calls(call).sendable(vision=False)[1]["tool_calls"][0]["function"]
    assert sent["arguments"] == "{}"
    assert call.arguments == arguments


def test_a_turn_that_broke_off() -> None:
    """Text is kept; a question without any answer goes; results stay."""
    conversation = Conversation()
    conversation.ask("q")
    conversation.broken_off("  ")
    assert conversation.messages == []
    conversation.ask("q")
    conversation.broken_off("half")
    assert conversation.messages[-1] == {"role": "assistant", "content": "half"}
    called = with_calls(AnswerCall("f", "{}", "a"))
    called.broken_off("")
    assert roles(called) == ["user", "assistant", "tool"]


def test_undo_takes_back_a_whole_turn() -> None:
    """The last question goes with its calls and results; without one there is nothing to undo."""
    conversation = with_calls(AnswerCall("f", "{}", "a"))
    assert conversation.undo() == "q"
    assert conversation.messages == []
    assert conversation.undo() is None


def test_images_go_only_where_they_are_seen() -> None:
    """Without vision a note stands in for each image; the conversation itself keeps it."""
    conversation = Conversation(system="s")
    conversation.ask("look", [IMAGE])
    assert conversation.images() == 1
    seen, blind = (conversation.sendable(vision=vision)[1]["content"] for vision in (True, False))
    assert seen[1]["image_url"]["url"] == IMAGE
    assert blind == "look\n[An image was here; the model cannot see it.]"
    assert conversation.images() == 1
    assert conversation.undo() == "look"


def test_what_is_sent_is_a_copy() -> None:
    """Nobody can change the conversation through what was sent."""
    conversation = with_calls(AnswerCall("f", "{}", "a"))
    conversation.sendable(vision=True)[1]["tool_calls"].clear()
    assert len(conversation.messages[1]["tool_calls"]) == 1


def test_halves_of_letters_are_not_sent() -> None:
    """What has no form in UTF-8, from odd bytes on stdin, is replaced in requests and files."""
    conversation = Conversation(system="a\udcff")
    conversation.ask("b\ud800")
    assert [m["content"] for m in conversation.sendable(vision=True)] == ["a?", "b?"]
    assert to_json(conversation)


def test_saved_is_loaded_again() -> None:
    """A conversation survives its file, with system message, calls, images and letters."""
    conversation = with_calls(AnswerCall("f", '{"a": "ü"}', "a"))
    conversation.system = "Sei kurz: ß"
    conversation.ask("look", [IMAGE])
    again = from_json(to_json(conversation))
    assert (again.system, again.messages) == (conversation.system, conversation.messages)


def test_a_plain_list_of_messages_is_a_conversation() -> None:
    """What other clients write is read as well; system messages are joined."""
    messages = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}]},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None},
    ]
    found = from_json(json.dumps(messages).encode())
    assert found.system == "a\n\nb"
    assert roles(found) == ["user", "assistant"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"not json", "is no JSON"),
        (b"\xff\xfe", "is no JSON"),
        (b'{"a": 1}', "no list of messages"),
        (b"3", "no list of messages"),
        (b'[{"role": "king", "content": "x"}]', "message 1 has none of the roles"),
        (b'[{"role": "user", "content": "x"}, 3]', "message 2 has none of the roles"),
        (b'[{"role": "user", "content": 3}]', "content that is no text"),
        (b'[{"role": "user", "content": ["x"]}]', "a part that is no object"),
        (b'[{"role": "assistant", "tool_calls": [{"id": "x"}]}]', "a call without name"),
        (b'[{"role": "assistant", "tool_calls": 3}]', "a call without name"),
    ],
)
def test_what_is_no_conversation_is_refused(value: bytes, words: str) -> None:
    """The message says which message is odd, and in what."""
    with pytest.raises(ConversationFormError, match=words):
        from_json(value)


def test_a_saved_call_needs_arguments_that_are_an_object() -> None:
    """Cut arguments in a file would make the server refuse every request."""
    function = {"name": "f", "arguments": '{"a'}
    message = {"role": "assistant", "tool_calls": [{"id": "x", "function": function}]}
    with pytest.raises(ConversationFormError):
        from_json(json.dumps([message]).encode())
