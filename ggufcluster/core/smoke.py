"""Short checks of a live model: what is asked, and what makes an answer pass.

A model is free in its words, so only what every sound answer has is asked for: a call that was
parsed, its arguments, a fact out of the prompt.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ggufcluster.core.toolcall_answer import Answer

MOST_TOKENS = 2048
MARKUP = ("<tool_call>", "<invoke ", "]<]minimax[>[", "<minimax:tool_call>", "<mm:think>")
NEEDLE = "vermilion-7319"

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather in one city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"capital": {"type": "string"}, "country": {"type": "string"}},
    "required": ["capital", "country"],
    "additionalProperties": False,
}


def user(text: str) -> dict[str, Any]:
    """Make a user's message."""
    return {"role": "user", "content": text}


def request(messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
    """Make a request of OpenAI's form."""
    return {"messages": list(messages), "max_tokens": MOST_TOKENS, **options}


def results(answer: Answer, text: str) -> list[dict[str, Any]]:
    """Answer every call of an answer with the same text."""
    return [{"role": "tool", "tool_call_id": call.id, "content": text} for call in answer.calls]


def cities(answer: Answer) -> list[str]:
    """Return the city of each call of `get_weather`, in lower case.

    Raises:
        ValueError: A call is of another tool, or its arguments cannot be read.
    """
    found = []
    for call in answer.calls:
        if call.name != WEATHER["function"]["name"]:  # type: ignore[index]
            raise ValueError(f"a call of {call.name!r}, which was not offered")
        arguments = json.loads(call.arguments)
        if not isinstance(arguments, dict) or not isinstance(arguments.get("city"), str):
            raise ValueError(f"a call with {call.arguments:.100}")
        found.append(arguments["city"].lower())
    return found


def leaked(answer: Answer) -> str:
    """Return the first piece of markup that was left in the text, or an empty text."""
    return next((mark for mark in MARKUP if mark in answer.content), "")


def filler(count: int) -> list[str]:
    """Return `count` numbered lines that say nothing."""
    return [
        f"Line {n}: the river runs past the mill and on to the sea." for n in range(1, count + 1)
    ]


def long_prompt(count: int) -> str:
    """Return `count` lines with a password in their middle, and a question for it."""
    lines = filler(count)
    lines.insert(count // 2, f"The password is {NEEDLE}.")
    return "\n".join([*lines, "", "What is the password? Answer with the password alone."])


def is_asked_for(answer: Answer) -> bool:
    """Tell whether a strict answer is what the schema asks for."""
    try:
        value = json.loads(answer.content)
    except ValueError:
        return False
    return isinstance(value, dict) and value.keys() == {"capital", "country"}
