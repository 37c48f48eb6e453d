"""Cases of the tool-call corpus: what a model is offered, what it writes, what a client must get.

A case file is TOML, one `[[case]]` each; tools lie beside it in `tools.json` and are named. In the
text that a model writes, `§` stands for the namespace token that MiniMax-M3 puts before every tag
of a call. tests/data/toolcalls/README.md has the format.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ggufcluster.core.template_style import Style
from ggufcluster.core.toy_vocabulary import NAMESPACE, THINK_END

if TYPE_CHECKING:
    from collections.abc import Mapping

SIGN = "§"
THINKING = ("adaptive", "enabled", "disabled")
CHOICES = ("auto", "required")
_BLOCK_START, _BLOCK_END = "<minimax:tool_call>", "</minimax:tool_call>"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call: the tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One case.

    Attributes:
        name: Unique, lower-case words with hyphens; the prompt ends with it.
        about: What it is about, in a few words.
        writes: What the model writes in the native format, markers spelled out.
        hybrid: The same in the hybrid format, or None to derive it from `writes`.
        tools: The tools offered, as OpenAI's API takes them.
        reasoning: The reasoning that a client must get.
        content: The text that a client must get; white space at its ends does not count.
        hybrid_content: The same in the hybrid format, where it repeats markup; None if equal.
        raw: Nothing could be read: the client must get all that was written after the thinking.
        calls: The calls that a client must get.
        finish: OpenAI's finish reason.
        thinking: The thinking mode asked for.
        choices: The values of `tool_choice` for which the case holds.
        schema: The JSON schema of a strict answer, or None; `content` is then compared as JSON.
        cut_after: The token limit strikes once this is written for the first time, or None.
        results: Results of the calls that are sent back.
        answers: What the model writes after the results.
        answer: The text that a client must get then.
        hybrid_cannot: Why hybrid cannot express it, or an empty text.
    """

    name: str
    about: str
    writes: str
    tools: tuple[Mapping[str, Any], ...] = ()
    hybrid: str | None = None
    reasoning: str = ""
    content: str = ""
    hybrid_content: str | None = None
    raw: bool = False
    calls: tuple[Call, ...] = ()
    finish: str = "stop"
    thinking: str = "adaptive"
    choices: tuple[str, ...] = ("auto",)
    schema: Mapping[str, Any] | None = None
    cut_after: str | None = None
    results: tuple[str, ...] = ()
    answers: str = ""
    answer: str = ""
    hybrid_cannot: str = ""


class CaseError(ValueError):
    """A case file is malformed; the message names file, case and field."""


def parse_tools(text: str) -> dict[str, Mapping[str, Any]]:
    """Read `tools.json`: a list of functions with name, description and parameters."""
    return {
        function["name"]: {"type": "function", "function": function}
        for function in json.loads(text)
    }


def parse_cases(
    text: str, tools: Mapping[str, Mapping[str, Any]], *, file: str
) -> tuple[Case, ...]:
    """Read one case file.

    Raises:
        CaseError: It is malformed.
    """
    try:
        tables = tomllib.loads(text)["case"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise CaseError(f"{file}: {error}") from error
    cases = []
    for number, table in enumerate(tables, start=1):
        where = f"{file}: case {table.get('name', number)}"
        try:
            cases.append(_case(table, tools))
        except (KeyError, TypeError, ValueError) as error:
            raise CaseError(f"{where}: {error}") from error
    return tuple(cases)


def written_text(case: Case, style: Style) -> str:
    """Return what the model writes in a style."""
    if style is Style.NATIVE:
        return case.writes
    return case.hybrid if case.hybrid is not None else to_hybrid(case.writes, case.calls)


def expected_content(case: Case, style: Style) -> str:
    """Return the text that a client must get in a style."""
    if case.raw:
        return written_text(case, style).rpartition(THINK_END)[2]
    if style is Style.HYBRID and case.hybrid_content is not None:
        return case.hybrid_content
    return case.content


def to_hybrid(text: str, calls: tuple[Call, ...]) -> str:
    """Rewrite native calls in the hybrid form, each in a block of its own.

    `calls` are the calls that the text holds, in order: a value with elements inside becomes the
    JSON that is expected of it.
    """
    ordered = iter(calls)
    text = re.sub(
        _tag('invoke name="(?P<name>[^"]*)"') + "(?P<body>.*?)" + _tag("/invoke"),
        lambda found: _hybrid_call(found, next(ordered, None)),
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r"(?<=</invoke>)(\s*)(?=<invoke )", rf"{_BLOCK_END}\n{_BLOCK_START}\1", text)
    text = text.replace(f"{NAMESPACE}<tool_call>", _BLOCK_START)
    return text.replace(f"{NAMESPACE}</tool_call>", _BLOCK_END)


def _tag(inside: str) -> str:
    return re.escape(f"{NAMESPACE}<") + inside + ">"


def _hybrid_call(found: re.Match[str], call: Call | None) -> str:
    arguments = call.arguments if call else {}
    body = re.sub(
        _tag(r"(?P<key>[^/>][^>]*)") + "(?P<value>.*?)" + re.escape(NAMESPACE) + "</(?P=key)>",
        lambda argument: _hybrid_argument(argument, arguments),
        found["body"],
        flags=re.DOTALL,
    )
    return f'<invoke name="{found["name"]}">{body}</invoke>'


def _hybrid_argument(found: re.Match[str], arguments: Mapping[str, Any]) -> str:
    key, value = found["key"], found["value"]
    expected = arguments.get(key)
    if isinstance(expected, list | dict) and (NAMESPACE in value or not value.strip()):
        value = json.dumps(expected, ensure_ascii=False)
    return f'<parameter name="{key}">{value}</parameter>'


def _case(table: dict[str, Any], tools: Mapping[str, Mapping[str, Any]]) -> Case:
    if unknown := table.keys() - {field.name for field in fields(Case)}:
        raise ValueError(f"unknown fields {', '.join(sorted(unknown))}")
    if not _NAME.fullmatch(table["name"]):
        raise ValueError("a name is lower-case words with hyphens")
    calls = tuple(Call(name, _arguments(text)) for name, text in table.get("calls", ()))
    hybrid = table.get("hybrid")
    writes = _spelled(table["writes"])
    return Case(
        name=table["name"],
        about=table["about"],
        writes=writes,
        tools=tuple(tools[name] for name in table.get("tools", ())),
        hybrid=None if hybrid is None else hybrid.removeprefix("\n"),
        reasoning=table.get("reasoning", ""),
        content=_spelled(table.get("content", "")),
        hybrid_content=table.get("hybrid_content"),
        raw=table.get("raw", False),
        calls=calls,
        finish=_one_of(
            table.get("finish", "tool_calls" if calls else "stop"),
            ("stop", "tool_calls", "length"),
        ),
        thinking=_one_of(table.get("thinking", "adaptive"), THINKING),
        choices=tuple(
            _one_of(choice, CHOICES)
            for choice in table.get("choices", CHOICES if calls else CHOICES[:1])
        ),
        schema=json.loads(table["schema"]) if "schema" in table else None,
        cut_after=_cut(writes, table.get("cut_after")),
        results=tuple(table.get("results", ())),
        answers=table.get("answers", ""),
        answer=table.get("answer", ""),
        hybrid_cannot=table.get("hybrid_cannot", ""),
    )


def _spelled(text: str) -> str:
    return text.removeprefix("\n").replace(f"{SIGN}<", f"{NAMESPACE}<")


def _cut(writes: str, after: str | None) -> str | None:
    if after is not None and after not in writes:
        raise ValueError("cut_after is not in what the model writes")
    return after


def _arguments(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError(f"arguments are an object, not {text}")
    return value


def _one_of(value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{value!r} is none of {', '.join(allowed)}")
    return value
