"""What a real llama-server answers to requests that are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from ggufcluster.core.toy_script import conversation, thought
from tests.engine.toy_server import toy_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

CHAT: Final = "/v1/chat/completions"
SAID: Final = [{"role": "user", "content": "Hello."}]
LINES: Final = conversation(
    thought("Somebody is here.", "It is sunny in Paris."), thought("Once more.", "A story is told.")
)
SECONDS: Final = 60
MOST_NESTED: Final = 1000


@pytest.fixture(scope="module")
def root(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The root URL of a server with a toy."""
    with toy_server(engine, tmp_path_factory.mktemp("requests"), LINES) as (url, _):
        yield url


def called(function: Any) -> dict[str, Any]:
    """Return a chat request whose history has one call."""
    call = {"id": "1", "type": "function", "function": function}
    answer = {"role": "tool", "tool_call_id": "1", "content": "done"}
    return {"messages": [*SAID, {"role": "assistant", "tool_calls": [call]}, answer]}


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        (CHAT, {"messages": [{"role": 5, "content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, "role"),
        (CHAT, called({"name": None, "arguments": "{}"}), "messages"),
        (CHAT, called(None), "messages"),
        (CHAT, {"messages": SAID, "tools": "x"}, "tools"),
        (CHAT, {"messages": SAID, "tools": [5]}, "tools"),
        (CHAT, {"messages": SAID, "tools": [{"type": "function", "function": {}}]}, "name"),
        (
            CHAT,
            {
                "messages": SAID,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "nothing"}},
                },
            },
            "nothing",
        ),
        ("/tokenize", {"content": 5}, "string"),
    ],
)
def test_wrong_request_is_the_clients_fault(
    root: str, path: str, body: dict[str, Any], named: str
) -> None:
    """What cannot be read is answered with 400, which clients do not repeat, and is named."""
    reply = httpx.post(root + path, json=body, timeout=SECONDS)

    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert named in reply.json()["error"]["message"]


def test_body_that_is_no_json_is_the_clients_fault(root: str) -> None:
    """A body that was cut off is answered with 400."""
    headers = {"Content-Type": "application/json"}
    reply = httpx.post(root + CHAT, content=b'{"messages": [', headers=headers, timeout=SECONDS)

    assert reply.status_code == 400, reply.text
    assert "parse error" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses"])
def test_request_nested_too_deep_is_refused(root: str, path: str) -> None:
    """Levels that the stack would not hold are refused in every dialect; the server lives on."""
    deep = "[" * (MOST_NESTED + 1) + "]" * (MOST_NESTED + 1)
    said = '"messages": [{"role": "user", "content": "x"}], "input": "x"'
    body = f'{{{said}, "metadata": {deep}}}'
    headers = {"Content-Type": "application/json"}
    reply = httpx.post(root + path, content=body, headers=headers, timeout=SECONDS)

    assert reply.status_code == 400, reply.text
    assert "nested" in reply.json()["error"]["message"]
    assert httpx.get(root + "/health", timeout=SECONDS).status_code == 200
