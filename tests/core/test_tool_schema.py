"""Functions as tools: what a model is told, and what its arguments become."""

from __future__ import annotations

from typing import Any

import pytest

from ggufcluster.core.tool_schema import (
    ToolArgumentsError,
    ToolFormError,
    bind,
    result_text,
    tool_of,
)


def google(city: str, days: int = 1, *, note: str | None = None) -> None:
    """Tell the weather.

    With details.

    Args:
        city: Name of the city,
            or of a village: both work.
        days (int, optional): How many days.
        note: What else.

    Returns:
        Nothing: at all.
    """


def sphinx(city: str, days: int) -> None:
    """Tell the weather.

    :param city: Name of the city
    :param int days: How many days
    :returns: Nothing
    """


def parameters(function: Any) -> dict[str, Any]:
    """What a model is told of a function's parameters."""
    return tool_of(function).schema["function"]["parameters"]  # type: ignore[no-any-return]


def test_a_docstring_in_googles_form_is_read() -> None:
    """Description, arguments over several lines, defaults and what is required."""
    function = tool_of(google).schema["function"]
    assert function["name"] == "google"
    assert function["description"] == "Tell the weather.\n\nWith details."
    found = function["parameters"]
    assert found["required"] == ["city"]
    assert found["properties"]["city"] == {
        "type": "string",
        "description": "Name of the city, or of a village: both work.",
    }
    assert found["properties"]["days"] == {
        "type": "integer",
        "description": "How many days.",
        "default": 1,
    }
    assert found["properties"]["note"]["default"] is None
    assert not found["additionalProperties"]


def test_a_docstring_in_sphinxs_form_is_read() -> None:
    """The fields tell the arguments and are no part of the description."""
    assert tool_of(sphinx).schema["function"]["description"] == "Tell the weather."
    found = parameters(sphinx)["properties"]
    assert found["city"]["description"] == "Name of the city"
    assert found["days"]["description"] == "How many days"


def test_a_function_needs_neither_docstring_nor_types() -> None:
    """Without them the model is told the names."""

    def bare(a, b=2, *rest):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN202
        pass

    assert tool_of(bare).schema["function"]["description"] == ""
    assert parameters(bare)["properties"] == {"a": {}, "b": {"default": 2}}
    assert bind(tool_of(bare), '{"a": [1]}').args == ([1], 2)


def test_a_default_that_json_cannot_tell_is_not_told() -> None:
    """It holds all the same."""

    def f(a: float = float("inf"), b: tuple[int, ...] = (1, 2)) -> None:
        pass

    assert all("default" not in value for value in parameters(f)["properties"].values())
    assert bind(tool_of(f), "").args == (float("inf"), (1, 2))


def test_arguments_reach_every_kind_of_parameter() -> None:
    """By position only, by name only, and those that nobody named."""

    def f(a: int, /, b: int = 2, *, c: int, **rest: int) -> tuple[Any, ...]:
        return a, b, c, rest

    bound = bind(tool_of(f), '{"c": 3, "a": 1, "x": 9}')
    assert f(*bound.args, **bound.kwargs) == (1, 2, 3, {"x": 9})
    assert "additionalProperties" not in parameters(f)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"days": 1}', "missing arguments: city"),
        ('{"city": "x", "town": 1}', "no argument 'town'; there are city, days, note"),
        ('{"city": 1}', "argument 'city' must be string"),
        ('{"city": "x"', "no JSON object"),
        ('["x"]', "no JSON object"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: str, words: str) -> None:
    """The message says what to do better."""
    with pytest.raises(ToolArgumentsError, match=words):
        bind(tool_of(google), arguments)


def test_what_cannot_be_a_tool_is_refused() -> None:
    """A type without a form in JSON, and a name that the API does not take."""

    def f(x: bytes) -> None:
        pass

    with pytest.raises(ToolFormError, match="x of f is of type bytes"):
        tool_of(f)
    with pytest.raises(ToolFormError, match="no name for a tool"):
        tool_of(lambda: None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"ä": [1, True]}, '{"ä": [1, true]}'),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ({1 }, '"{1}"'),
    ],
)  # fmt: skip
def test_results_are_text(value: Any, text: str) -> None:
    """Text stays as it is; all else becomes JSON if it can, and is told somehow if not."""
    assert result_text(value) == text
