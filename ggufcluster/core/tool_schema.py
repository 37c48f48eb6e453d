"""A Python function as a tool: its schema from signature and docstring, its arguments from JSON."""

from __future__ import annotations

import inspect
import json
import re
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggufcluster.core.conversation import arguments_of
from ggufcluster.core.tool_types import ArgumentTypeError, schema_of, to_python

if TYPE_CHECKING:
    from collections.abc import Callable

_SECTION = re.compile(r"^(?:Args|Arguments|Parameters):\s*$")
_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_FIELD = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_NAME = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
_NOT_NAMED = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class ToolFormError(ValueError):
    """A function cannot be a tool."""


class ToolArgumentsError(ValueError):
    """The arguments of a call do not fit the function; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: Its name.
        function: The function.
        schema: What the model is told, in OpenAI's form.
        hints: Type of each parameter.
    """

    name: str
    function: Callable[..., Any]
    schema: dict[str, Any]
    hints: dict[str, Any]


def tool_of(function: Callable[..., Any]) -> Tool:
    """Describe a function to a model.

    Raises:
        ToolFormError: A type cannot be told in a JSON schema, or an annotation has no meaning.
    """
    name = function.__name__
    if not _NAME.match(name):
        raise ToolFormError(f"{name!r} is no name for a tool: letters, digits, _ and - only")
    hints = _hints(function)
    about, told = _docstring(inspect.getdoc(function) or "")
    parameters = inspect.signature(function).parameters
    properties: dict[str, Any] = {}
    required = []
    for parameter in parameters.values():
        if parameter.kind in _NOT_NAMED:
            continue
        properties[parameter.name] = _property(name, parameter, hints, told)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    extra = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    described = {"name": name, "description": about, "parameters": schema}
    if not extra:
        schema["additionalProperties"] = False
    return Tool(name, function, {"type": "function", "function": described}, hints)


def bind(tool: Tool, arguments: str) -> inspect.BoundArguments:
    """Turn the arguments of a call into those of the function.

    Raises:
        ToolArgumentsError: They are no object, one is missing, unknown, or of another type.
    """
    given = arguments_of(arguments)
    if given is None:
        raise ToolArgumentsError(f"the arguments are no JSON object: {arguments:.200}")
    signature = inspect.signature(tool.function)
    named = {n: p for n, p in signature.parameters.items() if p.kind not in _NOT_NAMED}
    rest = next((p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    unknown = [name for name in given if name not in named]
    if unknown and rest is None:
        raise ToolArgumentsError(f"no argument {unknown[0]!r}; there are {_list(named)}")
    missing = [n for n, p in named.items() if p.default is p.empty and n not in given]
    if missing:
        raise ToolArgumentsError(f"missing arguments: {_list(missing)}")
    bound = inspect.BoundArguments(signature, {})
    for name, parameter in named.items():
        if name in given:
            bound.arguments[name] = _value(tool, name, given[name])
        elif parameter.default is not parameter.empty:
            bound.arguments[name] = parameter.default
    if rest is not None:
        bound.arguments[rest.name] = {name: given[name] for name in unknown}
    return bound


def result_text(value: Any) -> str:
    """Write what a function returned for the model: text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        return str(value)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as error:  # annotations are the user's code, and may raise anything
        raise ToolFormError(f"the types of {function.__name__} mean nothing: {error}") from error


def _property(
    function: str, parameter: inspect.Parameter, hints: dict[str, Any], told: dict[str, str]
) -> dict[str, Any]:
    try:
        found = schema_of(hints.get(parameter.name, Any))
    except ArgumentTypeError as error:
        raise ToolFormError(f"{parameter.name} of {function} {error}") from None
    if text := told.get(parameter.name):
        found["description"] = text
    if parameter.default is not parameter.empty and _is_plain(parameter.default):
        found["default"] = parameter.default
    return found


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, str | bool | int | float):
        return value == value and value not in (float("inf"), float("-inf"))  # noqa: PLR0124
    return isinstance(value, list | dict) and not value


def _value(tool: Tool, name: str, value: Any) -> Any:
    try:
        return to_python(value, tool.hints.get(name, Any))
    except ArgumentTypeError as error:
        raise ToolArgumentsError(f"argument {name!r} {error}") from None


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring into what the function does and what each argument is.

    Google's and Sphinx's forms are read. Text in no form is a description.
    """
    about: list[str] = []
    told: dict[str, str] = {}
    current, inside, indent = "", False, 0
    for line in text.splitlines():
        bare = line.strip()
        depth = len(line) - len(line.lstrip())
        if _SECTION.match(bare) and depth == 0:
            inside, indent = True, 0
        elif field := _FIELD.match(bare):
            current = field[1]
            told[current] = field[2]
        elif inside and bare and depth:
            indent = indent or depth
            entry = _ENTRY.match(bare) if depth <= indent else None
            if entry:
                current = entry[1]
            told[current] = entry[2] if entry else f"{told.get(current, '')} {bare}".strip()
        elif bare and (inside or re.match(r"^(?:Returns|Raises|Yields|Examples?):\s*$", bare)):
            break
        elif not inside and not told and not bare.startswith(":"):
            about.append(line)
    return "\n".join(about).strip(), {name: text for name, text in told.items() if name}


def _list(names: Any) -> str:
    return ", ".join(names) or "none"
