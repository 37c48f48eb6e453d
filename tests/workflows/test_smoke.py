"""Trying a live server: a scripted model stands in for it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.core.smoke import NEEDLE
from ggufcluster.errors import HeadError
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.smoke import smoke

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ["one call", "one call, streamed", "two calls", "a loop", "a JSON answer", "a long prompt"]


def call(city: str, number: int = 0) -> dict[str, Any]:
    """A call of the weather tool."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    return {"id": f"c{number}", "type": "function", "function": function}


@dataclass
class Model:
    """An API behind which a sensible model sits; `changes` spoils single answers.

    Attributes:
        at_once: Whether it calls for two cities in one answer.
        context: Tokens of its context.
        changes: Fields of the message, by a word of the question.
    """

    at_once: bool = True
    context: int = 32768
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    longest: int = 0

    def health(self) -> str:
        """Always well."""
        return "ok"

    def get(self, path: str) -> Any:
        """Tell the context."""
        assert path == "/props"
        return {"default_generation_settings": {"n_ctx": self.context}}

    def post(self, path: str, body: dict[str, Any], *, timeout: float) -> Any:
        """Count words as tokens, or answer."""
        del timeout
        if path == "/tokenize":
            return {"tokens": body["content"].split()}
        message = self._message(body["messages"])
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        return {"choices": [{"message": message, "finish_reason": finish}]}

    def stream(self, path: str, body: dict[str, Any], *, timeout: float) -> Iterator[Any]:
        """Answer in one piece for each call."""
        answer = self.post(path, body, timeout=timeout)["choices"][0]
        message = answer["message"]
        yield {"choices": [{"delta": {"content": message.get("content")}}]}
        for index, one in enumerate(message.get("tool_calls", ())):
            yield {"choices": [{"delta": {"tool_calls": [{**one, "index": index}]}}]}
        yield {"choices": [{"delta": {}, "finish_reason": answer["finish_reason"]}]}

    def _message(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        question = messages[0]["content"]
        self.longest = max(self.longest, len(question.split()))
        spoiled = next((new for word, new in self.changes.items() if word in question), {})
        return {**self._sensible(question, messages), **spoiled}

    def _sensible(self, question: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
        if "password" in question:
            return {"content": NEEDLE}
        if "capital" in question:
            return {"content": '{"capital": "Paris", "country": "France"}'}
        done = sum(message["role"] == "tool" for message in messages)
        if "Oslo" in question:
            calls = [call("Oslo", 1), call("Rome, Italy", 2)]
            return {"tool_calls": calls if self.at_once else calls[done : done + 1]}
        return {"content": "It is sunny."} if done else {"tool_calls": [call("Paris")]}


def failures(model: Model) -> dict[str, str]:
    """Run every check and return those that did not pass."""
    found = drain(smoke(model, clock=lambda: 0.0))
    assert [result.name for result in found] == NAMES
    return {result.name: result.failure for result in found if result.failure}


@pytest.mark.parametrize("at_once", [True, False])
def test_a_sensible_model_passes(*, at_once: bool) -> None:
    """Two calls may come at once or one after the other."""
    assert failures(Model(at_once=at_once)) == {}


@pytest.mark.parametrize(
    ("word", "change", "failed"),
    [
        ("Paris? Use the tool.", {"tool_calls": []}, {"one call", "one call, streamed"}),
        ("Paris? Use the tool,", {"tool_calls": []}, {"a loop"}),
        ("Paris? Use the tool,", {"content": "", "tool_calls": [call("Paris")]}, {"a loop"}),
        ("Oslo", {"tool_calls": [call("Oslo")]}, {"two calls"}),
        ("Oslo", {"tool_calls": [], "content": "Sunny."}, {"two calls"}),
        ("capital", {"content": "Paris"}, {"a JSON answer"}),
        ("capital", {"content": '{"capital": "Paris"}'}, {"a JSON answer"}),
        ("capital", {"content": "</x><mm:think>{}"}, {"a JSON answer"}),
        ("password", {"content": "I forgot."}, {"a long prompt"}),
        (
            "Oslo",
            {"tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "{}"}}]},
            {"two calls"},
        ),
        ("Oslo", {"tool_calls": [{"id": "x"}]}, {"two calls"}),
    ],
)
def test_each_fault_fails_its_own_check(
    word: str, change: dict[str, Any], failed: set[str]
) -> None:
    """What a model gets wrong fails the check that asks for it, and no other."""
    assert set(failures(Model(changes={word: change}))) == failed


def test_markup_in_the_text_fails() -> None:
    """A call that was left in the text is named."""
    content = '<minimax:tool_call><invoke name="get_weather">'
    found = failures(Model(changes={"Paris": {"content": content, "tool_calls": []}}))
    assert "was left in the text" in found["one call"]


def test_the_long_prompt_fits_the_context() -> None:
    """The prompt is as long as the context allows, and no longer than eight thousand tokens."""
    small, large = Model(context=4096), Model(context=1_000_000)
    assert failures(small) == {}
    assert 1500 < small.longest < 2300
    assert failures(large) == {}
    assert 7500 < large.longest < 8500
    assert "no room" in failures(Model(context=1024))["a long prompt"]


def test_a_server_that_is_gone_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server there is nothing to try."""

    def gone(_self: Model, _path: str) -> Any:
        raise HeadError("nobody answers")

    monkeypatch.setattr(Model, "get", gone)
    with pytest.raises(HeadError, match="nobody answers"):
        drain(smoke(Model(), clock=lambda: 0.0))
