"""Judge a chat template before a model is loaded for half an hour behind it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from ggufcluster.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Sequence

# llama.cpp chooses its MiniMax-M3 parser by these three pieces of the template's text.
_M3_MARKS = ("]<]minimax[>[", "<tool_call>", "<invoke name=")

# Some templates take a message as text, some as a list of parts; llama.cpp gives each its own.
_CONVERSATIONS: Sequence[list[dict[str, Any]]] = (
    [{"role": "user", "content": "Hello"}],
    [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
)


def template_kind(text: str | None) -> str:
    """Return which parser llama.cpp will use: ``minimax-m3``, ``generic`` or ``none``."""
    if not text:
        return "none"
    return "minimax-m3" if all(mark in text for mark in _M3_MARKS) else "generic"


def check_template(text: str, *, path: str) -> None:
    """Render a template once, sandboxed: a GGUF or a file from the net may bring any code.

    Raises:
        TemplateError: It does not parse, does not render, or renders without the user's words.
    """
    failures = [_failure(text, conversation) for conversation in _CONVERSATIONS]
    if all(failures):
        raise TemplateError(failures[0], path=path)


def _failure(text: str, conversation: list[dict[str, Any]]) -> str:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _raise, "strftime_now": _fixed_time}
    environment.filters["tojson"] = _to_json
    try:
        rendered = environment.from_string(text).render(
            messages=conversation, add_generation_prompt=True, bos_token="", eos_token=""
        )
    except jinja2.TemplateError as error:
        line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        return f"does not render: {error}{line}"
    except (TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        return f"does not render: {error}"
    return "" if "Hello" in rendered else "renders without the user's message"


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


def _to_json(value: Any, *, indent: int | None = None, **_style: Any) -> str:
    # Templates are written for a tojson with more options than jinja2's.
    return json.dumps(value, indent=indent)


def _fixed_time(pattern: str) -> str:
    return datetime(2026, 1, 1).strftime(pattern)  # noqa: DTZ001 - any day will do
