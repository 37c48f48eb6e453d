"""Judge a chat template before a model is loaded for half an hour behind it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from ggufcluster.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import jinja2

# The engine chooses its MiniMax-M3 reader by three pieces of the template's text, one of which
# differs in our hybrid style.
_M3_MARKS = ("]<]minimax[>[", "<invoke name=")
_M3_BLOCKS = ("<tool_call>", "<minimax:tool_call>")

# Some templates take a message as text, some as a list of parts; llama.cpp gives each its own.
CONTEXTS: Sequence[dict[str, Any]] = tuple(
    {
        "messages": [{"role": "user", "content": content}],
        "add_generation_prompt": True,
        "bos_token": "",
        "eos_token": "",
    }
    for content in ("Hello", [{"type": "text", "text": "Hello"}])
)


MOST_PROMPT = 4_000_000
_FAILURES = (
    *(TypeError, ValueError, ArithmeticError, LookupError, AttributeError, AssertionError),
    *(RecursionError, MemoryError, NotImplementedError),
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, or why there is none."""

    text: str = ""
    failure: str = ""


def template_kind(text: str | None) -> str:
    """Return which parser the engine will use: ``minimax-m3``, ``generic`` or ``none``."""
    if not text:
        return "none"
    ours = all(mark in text for mark in _M3_MARKS) and any(mark in text for mark in _M3_BLOCKS)
    return "minimax-m3" if ours else "generic"


def judge(answers: Sequence[Rendered], *, path: str) -> None:
    """Judge what a template made of `CONTEXTS`: one of them must have come out well.

    Raises:
        TemplateError: It does not parse, does not render, or renders without the user's words.
    """
    failures = [_failure(answer) for answer in answers]
    if all(failures):
        raise TemplateError(failures[0], path=path)


def render(text: str, contexts: Sequence[Mapping[str, Any]]) -> list[Rendered]:
    """Render a template in jinja2's immutable sandbox, once for each set of variables.

    Time and memory are the caller's to limit. A prompt of more than `MOST_PROMPT` letters is a
    failure.
    """
    import jinja2

    try:
        template = _environment().from_string(text)
    except jinja2.TemplateError as error:
        line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        return [Rendered(failure=f"does not parse: {error}{line}") for _ in contexts]
    except _FAILURES as error:
        return [Rendered(failure=f"does not parse: {_words(error)}") for _ in contexts]
    return [_rendered(template, context) for context in contexts]


def _rendered(template: jinja2.Template, context: Mapping[str, Any]) -> Rendered:
    import jinja2

    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate(**context):
            size += len(piece)
            if size > MOST_PROMPT:
                return Rendered(failure=f"renders more than {MOST_PROMPT:,} letters")
            pieces.append(piece)
    except (jinja2.TemplateError, *_FAILURES) as error:
        return Rendered(failure=_words(error))
    return Rendered("".join(pieces))


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _environment() -> jinja2.Environment:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": _raise, "strftime_now": _fixed_time}
    environment.filters["tojson"] = _to_json
    return environment


def _failure(rendered: Rendered) -> str:
    if rendered.failure:
        return f"does not render: {rendered.failure}"
    return "" if "Hello" in rendered.text else "renders without the user's message"


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


def _to_json(
    value: Any,
    *,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Templates are written for a tojson with more options than jinja2's, and llama-server's leaves
    # letters as they are.
    pair = tuple(separators) if separators else None
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=pair,  # type: ignore[arg-type] # a template's affair
        sort_keys=sort_keys,
    )


def _fixed_time(pattern: str) -> str:
    return datetime(2026, 1, 1).strftime(pattern)  # noqa: DTZ001 - any day will do
