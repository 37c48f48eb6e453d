"""The small client, against a small HTTP server."""

from __future__ import annotations

import pytest

from ggufcluster.adapters.http.small_client import Answer, SmallClient
from ggufcluster.core.secret import Secret
from ggufcluster.errors import HeadError
from tests.adapters.http.test_api import serving

MESSAGE = {"role": "assistant", "content": "hi", "tool_calls": [{"id": "1"}]}
QUESTION = {"role": "user", "content": "hello"}


def test_a_chat_is_asked_and_answered_as_by_the_openai_package() -> None:
    """The body has what was given, extra fields beside it; the answer has attributes."""
    with (
        serving(body={"choices": [{"message": MESSAGE}]}) as server,
        SmallClient(f"{server.root}/v1/", key=Secret("k"), timeout=60) as client,
    ):
        answer = client.chat.completions.create(
            model="m", messages=[QUESTION], extra_body={"reasoning_effort": "none"}
        )
        message = answer.choices[0].message
        client.chat.completions.create(model="m", messages=[QUESTION, message])
    method, path, body, key = server.seen[0]
    assert (method, path, key) == ("POST", "/v1/chat/completions", "Bearer k")
    assert body == {
        "model": "m",
        "messages": [QUESTION],
        "reasoning_effort": "none",
        "stream": False,
    }
    assert message.content == "hi"
    assert message.tool_calls[0].id == "1"
    assert message.reasoning_content is None
    assert server.seen[1][2]["messages"] == [QUESTION, MESSAGE]


def test_other_paths_are_those_of_the_api() -> None:
    """Completions, embeddings and models go where the API has them."""
    with serving(body={"data": []}) as server:
        client = SmallClient(f"{server.root}/v1", timeout=60)
        client.completions.create(prompt="x")
        client.embeddings.create(input=["x"])
        assert client.models.list().data == []
        client.close()
    assert [path for _, path, *_ in server.seen] == [
        "/v1/completions",
        "/v1/embeddings",
        "/v1/models",
    ]


def test_a_streamed_answer_comes_in_pieces() -> None:
    """Each event is an answer of its own."""
    with serving() as server:
        server.body = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n'
        client = SmallClient(f"{server.root}/v1", timeout=60)
        pieces = list(client.chat.completions.create(messages=[QUESTION], stream=True))
        client.close()
    assert [piece.choices[0].delta.content for piece in pieces] == ["a"]


def test_an_error_is_raised_in_the_heads_words() -> None:
    """A refusal of the server is an exception with its words."""
    with serving(400, {"error": {"message": "too long"}}) as server:
        client = SmallClient(f"{server.root}/v1", timeout=60)
        with pytest.raises(HeadError, match="too long"):
            client.chat.completions.create(messages=[QUESTION])
        client.close()


def test_a_misspelled_field_is_an_attribute_error() -> None:
    """What no server leaves out is not silently None."""
    answer = Answer({"content": "x"})
    with pytest.raises(AttributeError, match="contend"):
        _ = answer.contend
    assert answer == Answer({"content": "x"})
    assert answer.model_dump() == {"content": "x"}
