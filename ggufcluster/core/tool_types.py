"""Python's types in JSON: the schema of a type, and the value of a type from JSON."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any, Literal, Union, get_args, get_origin

_PLAIN: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_PLAIN[type(None)] = "null"
_LISTS = (list, tuple, set, frozenset, Sequence, MutableSequence, AbstractSet, Iterable)
_DICTS = (dict, Mapping, MutableMapping)
_UNIONS = (Union, types.UnionType)


class ArgumentTypeError(ValueError):
    """A type has no JSON form, or a value is not of its type; a sentence without its subject."""


def schema_of(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type.

    Raises:
        ArgumentTypeError: It has none.
    """
    hint, about = _unwrapped(hint)
    found = _schema(hint)
    return {**found, "description": about} if about else found


def to_python(value: Any, hint: Any) -> Any:
    """Return a JSON value as a value of a type.

    A whole float is an integer as well, since models and JSON do not tell them apart.

    Raises:
        ArgumentTypeError: It is none.
    """
    hint, _ = _unwrapped(hint)
    if _is_anything(hint):
        return value
    if hint in _PLAIN:
        return _plain(value, hint)
    if isinstance(hint, type) and get_origin(hint) is None and hint not in (*_LISTS, *_DICTS):
        return _of_class(value, hint)
    return _generic(value, hint)


def _generic(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _literal(value, arguments)
    if origin in _UNIONS:
        return _one_of(value, arguments)
    if (origin or hint) in _LISTS:
        return _list(value, origin or hint, arguments)
    if (origin or hint) not in _DICTS:
        return _of_class(value, hint)
    _checked(value, isinstance(value, dict), "an object")
    member = arguments[1] if len(arguments) == 2 else Any
    return {name: to_python(item, member) for name, item in value.items()}


def _is_anything(hint: Any) -> bool:
    return hint is Any or hint is object or isinstance(hint, typing.TypeVar)


def _unwrapped(hint: Any) -> tuple[Any, str]:
    """Take off `Annotated`, `Required` and their like; a text in it is a description."""
    about = ""
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            about = about or next((t for t in get_args(hint)[1:] if isinstance(t, str)), "")
        elif origin not in (typing.Required, typing.NotRequired, typing.Final):
            return type(None) if hint is None else hint, about
        hint = get_args(hint)[0]


def _schema(hint: Any) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if _is_anything(hint):
        return {}
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in _UNIONS:
        return {"anyOf": [schema_of(option) for option in arguments]}
    if (origin or hint) in _LISTS:
        return _list_schema(origin or hint, arguments)
    return _object_schema(hint, origin or hint, arguments)


def _list_schema(kind: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        items = [schema_of(argument) for argument in arguments]
        same = items[0] if all(item == items[0] for item in items) else {"anyOf": items}
        return {"type": "array", "items": same, "minItems": len(items), "maxItems": len(items)}
    return {"type": "array", "items": schema_of(arguments[0]) if arguments else {}}


def _object_schema(hint: Any, kind: Any, arguments: tuple[Any, ...]) -> dict[str, Any]:
    if kind not in _DICTS:
        return _class_schema(hint)
    member = schema_of(arguments[1]) if len(arguments) == 2 else {}
    return {"type": "object", **({"additionalProperties": member} if member else {})}


def _class_schema(hint: Any) -> dict[str, Any]:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [member.value for member in hint]}
    if _is_path(hint):
        return {"type": "string"}
    members, required = _members(hint)
    properties = {name: schema_of(kind) for name, kind in members.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _members(hint: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a dataclass or typed dictionary, and those that must be given."""
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        return hints, [name for name, kind in hints.items() if _must_be_given(hint, name, kind)]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        fields = [field for field in dataclasses.fields(hint) if field.init]
        none = dataclasses.MISSING
        needed = [f.name for f in fields if f.default is none and f.default_factory is none]
        return {field.name: hints[field.name] for field in fields}, needed
    name = getattr(hint, "__name__", str(hint))
    raise ArgumentTypeError(f"is of type {name}, which has no form in JSON")


def _is_path(hint: Any) -> bool:
    return isinstance(hint, type) and hint.__module__.partition(".")[0] == "pathlib"


def _must_be_given(hint: Any, name: str, kind: Any) -> bool:
    # A class whose annotations are texts does not know what they mark as not required.
    marked = get_origin(kind)
    if marked in (typing.Required, typing.NotRequired):
        return marked is typing.Required
    return name in hint.__required_keys__


def _plain(value: Any, hint: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is float:
        return float(_checked(value, is_number, "a number"))
    if hint is int and is_number and value == value // 1:
        return int(value)
    if hint is int:
        return _checked(value, False, "an integer")
    return _checked(value, isinstance(value, hint), _PLAIN[hint])


def _literal(value: Any, options: tuple[Any, ...]) -> Any:
    for option in options:
        if type(option) is type(value) and option == value:
            return option
    return _checked(value, False, f"one of {', '.join(map(repr, options))}")


def _one_of(value: Any, options: tuple[Any, ...]) -> Any:
    # A type that the value has already goes first, so that 1.0 stays a float in `int | float`.
    exact = [option for option in options if option is type(value)]
    reasons = []
    for option in (*exact, *options):
        try:
            return to_python(value, option)
        except ArgumentTypeError as error:
            reasons.append(str(error))
    raise ArgumentTypeError(", or ".join(dict.fromkeys(reasons)))


def _list(value: Any, kind: Any, arguments: tuple[Any, ...]) -> Any:
    _checked(value, isinstance(value, list), "a list")
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        _checked(value, len(value) == len(arguments), f"a list of {len(arguments)}")
        return tuple(to_python(item, k) for item, k in zip(value, arguments, strict=True))
    member = arguments[0] if arguments else Any
    items = [to_python(item, member) for item in value]
    return {tuple: tuple, set: set, frozenset: frozenset, AbstractSet: set}.get(kind, list)(items)


def _of_class(value: Any, hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        found = [member for member in hint if member.value == value]
        names = ", ".join(repr(member.value) for member in hint)
        return found[0] if found else _checked(value, False, f"one of {names}")
    if _is_path(hint):
        return hint(_checked(value, isinstance(value, str), "a string"))
    members, required = _members(hint)
    _checked(value, isinstance(value, dict), "an object")
    for name in (*required, *value):
        _checked(value, name in value and name in members, f"an object of {', '.join(members)}")
    given = {name: to_python(item, members[name]) for name, item in value.items()}
    return given if typing.is_typeddict(hint) else hint(**given)


def _checked(value: Any, right: bool, wanted: str) -> Any:  # noqa: FBT001
    if not right:
        raise ArgumentTypeError(f"must be {wanted}, not {value!r:.100}")
    return value
