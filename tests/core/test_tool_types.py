"""Python's types in JSON, both ways."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NotRequired, TypedDict, Union

import pytest

from ggufcluster.core.tool_types import ArgumentTypeError, schema_of, to_python


class Color(enum.Enum):
    """An enumeration."""

    RED = "red"
    BLUE = 2


@dataclass
class Place:
    """A dataclass."""

    name: str
    inner: list[Color] = field(default_factory=list)


class Person(TypedDict):
    """A typed dictionary."""

    name: str
    age: NotRequired[int]


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (None, {"type": "null"}),
        (Any, {}),
        (Path, {"type": "string"}),
        (list, {"type": "array", "items": {}}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, int],
            {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        ),
        (dict, {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Color, {"enum": ["red", 2]}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (Annotated[int, 3], {"type": "integer"}),
    ],
)
def test_a_type_has_its_schema(hint: Any, schema: dict[str, Any]) -> None:
    """Each type that JSON can tell is told."""
    assert schema_of(hint) == schema


def test_classes_with_members_are_objects() -> None:
    """Dataclasses and typed dictionaries name their members and which must be given."""
    place, person = schema_of(Place), schema_of(Person)
    assert place["required"] == person["required"] == ["name"]
    assert place["properties"]["inner"] == {"type": "array", "items": {"enum": ["red", 2]}}
    assert person["properties"]["age"] == {"type": "integer"}
    assert not place["additionalProperties"]


@pytest.mark.parametrize("hint", [bytes, complex, object.__init__, list[bytes], bytes | None])
def test_a_type_without_a_form_is_refused(hint: Any) -> None:
    """What JSON cannot tell is refused, also inside of others."""
    with pytest.raises(ArgumentTypeError, match="no form in JSON"):
        schema_of(hint)


@pytest.mark.parametrize(
    ("value", "hint", "result"),
    [
        (2.0, int, 2),
        (2, float, 2.0),
        (True, bool, True),
        (None, None, None),
        ([1, "a"], list, [1, "a"]),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, 1], set[int], {1}),
        (["a"], Sequence[str], ["a"]),
        ({"a": 1.0}, dict[str, int], {"a": 1}),
        (None, int | None, None),
        (1.5, int | float, 1.5),
        (1.0, int | float, 1.0),
        ("red", Color, Color.RED),
        (2, Color, Color.BLUE),
        (1, Literal["a", 1], 1),
        ("/x", PurePosixPath, PurePosixPath("/x")),
        ({"name": "x", "inner": ["red"]}, Place, Place("x", [Color.RED])),
        ({"name": "x"}, Person, {"name": "x"}),
        ({"any": [1]}, Any, {"any": [1]}),
    ],
)
def test_a_value_becomes_one_of_the_type(value: Any, hint: Any, result: Any) -> None:
    """A JSON value that fits comes back in the type of the parameter."""
    found = to_python(value, hint)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        (True, int, "must be an integer, not True"),
        (True, float, "must be a number"),
        (2.5, int, "must be an integer"),
        (float("inf"), int, "must be an integer"),
        (1, str, "must be string"),
        ("x", list[int], "must be a list"),
        (["x"], list[int], "must be an integer, not 'x'"),
        ([1], tuple[int, int], "must be a list of 2"),
        ([], dict, "must be an object"),
        ("x", int | None, "must be an integer, not 'x', or must be null"),
        ("green", Color, "must be one of 'red', 2"),
        (True, Literal[1], "must be one of 1"),
        ({}, Place, "must be an object of name, inner"),
        ({"name": "x", "y": 1}, Person, "must be an object of name, age"),
        (3, Path, "must be a string"),
        ("x" * 1000, int, "must be an integer"),
    ],
)
def test_a_value_of_another_type_is_refused(value: Any, hint: Any, words: str) -> None:
    """The message says what is wanted and, in short, what came."""
    with pytest.raises(ArgumentTypeError) as caught:
        to_python(value, hint)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 200
