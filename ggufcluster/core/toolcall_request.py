"""The requests that put a case of the tool-call corpus to llama-server, in both of its dialects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from ggufcluster.core.toolcall_case import CHOICES
from ggufcluster.core.toolcall_toy import marked_result, question

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.toolcall_answer import Answer
    from ggufcluster.core.toolcall_case import Case

DIALECTS = ("openai", "anthropic")
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
MOST_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask: the API, `tool_choice`, and whether the answer is streamed."""

    dialect: str
    choice: str
    streamed: bool

    def __str__(self) -> str:
        return f"{self.dialect} {self.choice}{' streamed' if self.streamed else ''}"


ALL_WAYS = tuple(Way(*way) for way in product(DIALECTS, CHOICES, (False, True)))


def ways_of(case: Case) -> Iterator[Way]:
    """Yield the ways in which a case can be put."""
    for way in ALL_WAYS:
        if way.choice not in case.choices or (way.choice == "required" and not case.tools):
            continue
        if way.dialect == "anthropic" and case.schema is not None:
            continue  # that API has no strict answers at the pin
        yield way


def first_request(case: Case, way: Way, *, limit: int | None) -> dict[str, Any]:
    """Return the request that puts the question of a case; `limit` cuts the answer."""
    message = {"role": "user", "content": question(case)}
    return _request(case, way, [message], limit=limit)


def second_request(case: Case, way: Way, first: Answer) -> dict[str, Any]:
    """Return the request that sends the results back for the calls of a first answer."""
    texts = [*case.results[:-1], marked_result(case, case.results[-1])]
    ask = {"role": "user", "content": question(case)}
    build = _openai_results if way.dialect == "openai" else _anthropic_results
    return _request(case, way, [ask, *build(first, texts)], limit=None, choice="auto")


def _request(
    case: Case,
    way: Way,
    messages: list[dict[str, Any]],
    *,
    limit: int | None,
    choice: str | None = None,
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "messages": messages,
        "max_tokens": limit or MOST_TOKENS,
        "stream": way.streamed,
        "temperature": 0,
    }
    add = _openai_options if way.dialect == "openai" else _anthropic_options
    return body | add(case, choice or way.choice)


def _openai_options(case: Case, choice: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if case.tools:
        options |= {"tools": list(case.tools), "tool_choice": choice}
    if case.thinking != "adaptive":
        options["reasoning_effort"] = "none" if case.thinking == "disabled" else "high"
    if case.schema is not None:
        schema = {"name": "answer", "strict": True, "schema": case.schema}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


def _anthropic_options(case: Case, choice: str) -> dict[str, Any]:
    options: dict[str, Any] = {"model": "toy"}
    if case.tools:
        kind = {"auto": "auto", "required": "any"}[choice]
        options |= {"tools": [_anthropic_tool(tool["function"]) for tool in case.tools]}
        options |= {"tool_choice": {"type": kind}}
    if case.thinking == "enabled":
        options["thinking"] = {"type": "enabled", "budget_tokens": MOST_TOKENS}
    elif case.thinking == "disabled":
        options["thinking"] = {"type": "disabled"}
    return options


def _anthropic_tool(function: dict[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters", {"type": "object", "properties": {}})
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "input_schema": parameters,
    }


def _openai_results(first: Answer, texts: list[str]) -> list[dict[str, Any]]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in first.calls
    ]
    said: dict[str, Any] = {"role": "assistant", "content": first.content, "tool_calls": calls}
    if first.reasoning:
        said["reasoning_content"] = first.reasoning
    return [
        said,
        *(
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(first.calls, texts, strict=True)
        ),
    ]


def _anthropic_results(first: Answer, texts: list[str]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if first.reasoning:
        blocks.append({"type": "thinking", "thinking": first.reasoning, "signature": ""})
    if first.content:
        blocks.append({"type": "text", "text": first.content})
    blocks += [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.name,
            "input": json.loads(call.arguments),
        }
        for call in first.calls
    ]
    results = [
        {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": text,
            "is_error": text.startswith("Error"),
        }
        for call, text in zip(first.calls, texts, strict=True)
    ]
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
