"""Conversations that a chat template must render, and what the prompt must then hold.

`context_of` prepares a conversation the way the pinned llama-server does (common/chat.cpp), so that
both renderers get the same values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORDS = 'Grüße, "Zoë" \\ <b>&amp;</b> 東京 {{ x }}'

_TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tell the weather, even in Zürich.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": 'A "name"'},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "note",
            "description": "Keep a note.",
            "parameters": {"type": "object", "properties": {"items": {"type": "array"}}},
        },
    },
)


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation in OpenAI's form.

    Attributes:
        name: Name for people.
        messages: The messages; arguments of calls are objects.
        tools: The tools offered.
        wishes: Top-level fields of the request that concern thinking.
        variables: What the request gives as `chat_template_kwargs`.
        holds: Texts that the prompt must hold, in this order.
        thinking: The thinking mode that the prompt must show, or None.
        generate: Whether the turn of the model is opened.
    """

    name: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    wishes: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    holds: tuple[str, ...] = ()
    thinking: str | None = None
    generate: bool = True


def _call(name: str, arguments: dict[str, Any], number: int) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function, "id": f"call{number:05d}"}


_ASK: dict[str, Any] = {"role": "user", "content": _WORDS}
_CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [_call("get_weather", {"city": "Łódź <x>", "days": 2}, 1)],
}
_RESULT: dict[str, Any] = {"role": "tool", "content": "sunny <21>", "tool_call_id": "call00001"}
_TWICE: dict[str, Any] = {
    "role": "assistant",
    "content": "Both.",
    "reasoning_content": "Two things\nto do.",
    "tool_calls": [
        _call("get_weather", {"city": "Bonn"}, 1),
        _call(
            "note",
            {"items": ["a", 1.5, True, {"deep": ["é", None]}], "unset": None, "on": False},
            2,
        ),
    ],
}
_SECOND: dict[str, Any] = {
    "role": "tool",
    "content": "Error: disk full",
    "tool_call_id": "call00002",
}

TALKS = (
    Conversation("one question", [_ASK], holds=(_WORDS,)),
    Conversation(
        "several turns",
        [
            {"role": "user", "content": "First."},
            {"role": "assistant", "content": "Answer one."},
            {"role": "user", "content": "Second."},
        ],
        holds=("First.", "Answer one.", "Second."),
    ),
    Conversation(
        "system message",
        [{"role": "system", "content": "Be brief."}, _ASK],
        holds=("Be brief.", _WORDS),
    ),
    Conversation(
        "parts of text",
        [{"role": "user", "content": [{"type": "text", "text": "Part."}]}],
        holds=("Part.",),
    ),
    Conversation("no turn opened", [_ASK], holds=(_WORDS,), generate=False),
    Conversation(
        "reasoning of an earlier turn",
        [
            _ASK,
            {"role": "assistant", "content": "Done.", "reasoning_content": "Hm."},
            {"role": "user", "content": "More."},
        ],
        holds=(_WORDS, "Done.", "More."),
    ),
    Conversation("empty message", [{"role": "user", "content": ""}]),
)

TOOL_TALKS = (
    Conversation("tools offered", [_ASK], _TOOLS, holds=("get_weather", "Zürich", _WORDS)),
    Conversation(
        "a call and its result",
        [_ASK, _CALLED, _RESULT],
        _TOOLS,
        holds=(_WORDS, "get_weather", "Łódź <x>", "sunny <21>"),
    ),
    Conversation(
        "two calls and an error",
        [_ASK, _TWICE, _RESULT, _SECOND],
        _TOOLS,
        holds=("Both.", "Bonn", "note", "sunny <21>", "Error: disk full"),
    ),
    Conversation(
        "a call, its result and an answer",
        [
            _ASK,
            _CALLED,
            _RESULT,
            {"role": "assistant", "content": "Sunny."},
            {"role": "user", "content": "And then?"},
        ],
        _TOOLS,
        holds=("sunny <21>", "Sunny.", "And then?"),
    ),
    Conversation(
        "a call without offered tools",
        [_ASK, _CALLED, _RESULT],
        holds=("get_weather", "sunny <21>"),
    ),
)

THINKING_TALKS = tuple(
    Conversation(
        f"thinking asked for by {given}",
        [_ASK],
        wishes=wishes,
        variables=variables,
        holds=(_WORDS,),
        thinking=mode,
    )
    for given, wishes, variables, mode in (
        ("nothing", {}, {}, "adaptive"),
        ("thinking_mode disabled", {}, {"thinking_mode": "disabled"}, "disabled"),
        ("thinking_mode enabled", {}, {"thinking_mode": "enabled"}, "enabled"),
        ("reasoning_effort none", {"reasoning_effort": "none"}, {}, "disabled"),
        ("reasoning_effort low", {"reasoning_effort": "low"}, {}, "adaptive"),
        ("reasoning_effort high", {"reasoning_effort": "high"}, {}, "enabled"),
        ("reasoning_effort None as a variable", {}, {"reasoning_effort": "None"}, "disabled"),
        ("reasoningEffort high", {}, {"reasoningEffort": "high"}, "enabled"),
        ("enable_thinking false", {}, {"enable_thinking": False}, "disabled"),
        ("enable_thinking true", {}, {"enable_thinking": True}, "adaptive"),
        ("enableThinking false", {}, {"enableThinking": False}, "disabled"),
        ("thinking of type disabled", {}, {"thinking": {"type": "disabled"}}, "disabled"),
        (
            "both, thinking_mode first",
            {},
            {"enable_thinking": False, "thinking_mode": "adaptive"},
            "adaptive",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Renderer:
    """What a renderer knows beside the conversation; the defaults fit most templates.

    Attributes:
        bos: Text of the token that begins a text.
        eos: Text of the token that ends a turn.
        object_arguments: Arguments of past calls are objects, else JSON text.
        parts: Messages may be lists of parts; else parts are joined.
        text: Messages may be text; else text is made a part.
    """

    bos: str = ""
    eos: str = ""
    object_arguments: bool = True
    parts: bool = True
    text: bool = True


def renderer_of(capabilities: Mapping[str, bool], *, bos: str, eos: str) -> Renderer:
    """Read what llama-server's `/props` says of a template."""
    return Renderer(
        bos,
        eos,
        object_arguments=capabilities.get("supports_object_arguments", False),
        parts=capabilities.get("supports_typed_content", False),
        text=capabilities.get("supports_string_content", False),
    )


def request_of(conversation: Conversation) -> dict[str, Any]:
    """Return the body for llama-server's `/apply-template`."""
    return {
        "messages": [_with_text_arguments(message) for message in conversation.messages],
        "chat_template_kwargs": _variables(conversation),
        "add_generation_prompt": conversation.generate,
        **({"tools": list(conversation.tools)} if conversation.tools else {}),
        **conversation.wishes,
    }


def context_of(conversation: Conversation, renderer: Renderer) -> dict[str, Any]:
    """Return the variables that a template sees."""
    variables = {"enable_thinking": True, **_variables(conversation), **conversation.wishes}
    if variables.get("reasoning_effort") == "none":
        del variables["reasoning_effort"]
        variables["enable_thinking"] = False
    if isinstance(effort := variables.get("reasoning_effort"), str):
        variables["reasoning_strength"] = effort
    return {
        "messages": [_prepared(message, renderer) for message in conversation.messages],
        "bos_token": renderer.bos,
        "eos_token": renderer.eos,
        **({"tools": list(conversation.tools)} if conversation.tools else {}),
        **({"add_generation_prompt": True} if conversation.generate else {}),
        **variables,
    }


def _variables(conversation: Conversation) -> dict[str, Any]:
    # Said outright, since the server's own default depends on the template; but a wish must decide.
    default = {} if conversation.wishes else {"enable_thinking": True}
    return {**default, **conversation.variables}


def _prepared(message: Mapping[str, Any], renderer: Renderer) -> dict[str, Any]:
    if not renderer.object_arguments:
        message = _with_text_arguments(message)
    content = message["content"]
    if isinstance(content, list) and renderer.text and not renderer.parts:
        content = "\n".join(part["text"] for part in content)
    elif isinstance(content, str) and renderer.parts and not renderer.text:
        content = [{"type": "text", "text": content}]
    return {**message, "content": content}


def _with_text_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": _compact(call)}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def _compact(call: Mapping[str, Any]) -> str:
    arguments = call["function"]["arguments"]
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def missing(conversation: Conversation, prompt: str) -> str:
    """Say which text a prompt lacks that it must hold; an empty text if none."""
    place = 0
    for text in conversation.holds:
        found = prompt.find(text, place)
        if found < 0:
            return f"the prompt lacks {text!r}, or holds it out of order"
        place = found + len(text)
    return ""
