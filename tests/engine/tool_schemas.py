"""Tools nobody thought of, and arguments for them with what a reader must make of these.

The schemas use all that clients send; the arguments are what a model may mean by them. What the
native form cannot tell apart is left out, or expected as the corpus's README rules it.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from ggufcluster.core.template_style import Style

NAMESPACE = "]<]minimax[>["
# Words that a careless reader takes for markup, for a value of another type, or for nothing.
NASTY = (
    *("", " ", "\n", "\t\n ", "null", "None", "true", "False", "0", "007", "-1", "1e3", "1.50"),
    *("NaN", "[]", "{}", '{"a": [1, "2", null]}', "[1, 2", '"quoted"', "\\", "\\n", "\\u0041"),
    *(
        "\n  indented\n",
        "  both ends  ",
        "a\r\nb",
        "<a>b</a>",
        "</parameter>",
        "</invoke>",
        "<item>",
    ),
    *("</tool_call>", '<invoke name="f">', "<minimax:tool_call>", NAMESPACE, NAMESPACE + "<"),
    *(NAMESPACE + "</", NAMESPACE + "<item>", NAMESPACE + "</item>", NAMESPACE + "<b>1"),
    *(
        "]<]minimax",
        "]<]mini",
        "]",
        "<",
        "mm:think>",
        "<mm:think>",
        "</mm:think>",
        "```json\n{}\n```",
    ),
    *(
        "{{ x }}",
        "{% if %}",
        "&lt;&amp;",
        "'",
        '"',
        "é",
        "日本",
        "😀",
        "\u200b",
        "\x7f",
        "\0x",
        "§",
    ),
    *(f"a {NAMESPACE}<tool_call> b", f'{NAMESPACE}<invoke name="g">', "long " * 60),
)
_LETTERS = st.characters(codec="utf-8", exclude_characters="]")
TEXTS = st.one_of(
    st.sampled_from(NASTY),
    st.lists(st.sampled_from(NASTY), max_size=4).map("".join),
    st.text(_LETTERS, max_size=12),
)
WORDS = st.text(string.ascii_lowercase, min_size=1, max_size=8).map(lambda word: f"w {word}")
INTEGERS = st.one_of(st.integers(-9, 99), st.integers(-(2**63), 2**63 - 1))
FLOATS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False, width=64),
    st.sampled_from([0.1, -0.5, 1.0, 1e16, 1e-7, 123456.789]),
)
NAMES = st.one_of(
    st.sampled_from(
        [
            *("a", "ab", "a-b", "a.b", "a_b", "b", "item", "items", "-n", "$ref", "type", "name"),
            *("properties", "required", "enum", "anyOf", "invoke", "tool_call", "parameter", "x y"),
            *(
                "minimax",
                "null",
                "0",
                "ключ",
                "日本",
                "a=b",
                'say "x"',
                "<x",
                "it's",
                "a\\b",
                "#/a",
            ),
        ]
    ),
    st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=10),
)
PATHS = st.sampled_from(["/a", "/src/a.py", "/", "//", "src/b.py"])
TOOL_NAMES = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=12)


@dataclass(frozen=True, slots=True)
class Kind:
    """A type.

    Attributes:
        schema: What a client declares.
        values: Pairs of a value and what must be read of it.
    """

    schema: Any
    values: st.SearchStrategy[tuple[Any, Any]]


def same(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Values that are read as they were meant."""
    return values.map(lambda value: (value, value))


def _free(value: Any) -> bool:
    """Tell whether a text stays text where anything is allowed."""
    return value not in ("true", "false") and not _is_number(value) and not _begins_element(value)


def _is_number(text: str) -> bool:
    return bool(text) and not set(text) - set("+-.0123456789eE")


def _begins_element(text: str) -> bool:
    stripped = text.lstrip(" \t\r\n")
    return stripped.startswith(NAMESPACE + "<")


FREE_TEXTS = TEXTS.filter(_free)
ANYTHING = same(st.one_of(FREE_TEXTS, st.booleans(), st.integers(-(2**53), 2**53)))
MISFITS = same(WORDS)  # for any type: text that is neither a number nor JSON


def _text(extra: dict[str, Any]) -> Kind:
    return Kind({"type": "string", **extra}, same(TEXTS))


def scalars() -> st.SearchStrategy[Kind]:
    """A type without members."""
    fewest: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
        [{}, {"minLength": 1}, {"pattern": "^x"}, {"format": "uri"}]
    )
    numbers = st.one_of(FLOATS, st.integers(-99, 99))
    anything: st.SearchStrategy[Any] = st.sampled_from([{}, True, {"description": "any"}])
    return st.one_of(
        fewest.map(_text),
        fewest.map(_text),
        st.just(Kind({"type": "integer", "minimum": 0}, same(INTEGERS))),
        st.just(Kind({"type": "number"}, same(numbers))),
        st.just(Kind({"type": "boolean"}, same(st.booleans()))),
        st.just(Kind({"type": "null"}, same(st.none()))),
        anything.map(lambda schema: Kind(schema, ANYTHING)),
        _listed(),
        _unions(),
    )


@st.composite
def _listed(draw: st.DrawFn) -> Kind:
    """Values in a list, with or without their type."""
    options: list[Any] = draw(
        st.one_of(
            st.lists(WORDS, min_size=1, max_size=3),
            st.lists(st.integers(-5, 5), min_size=1, max_size=3),
            st.lists(st.one_of(WORDS, st.integers(-5, 5), st.booleans()), min_size=1, max_size=4),
            st.just(["1", "2"]),
        )
    )
    schema: dict[str, Any] = {"enum": options}
    if len(options) == 1 and draw(st.booleans()):
        schema = {"const": options[0]}
    if all(isinstance(option, str) for option in options) and draw(st.booleans()):
        schema["type"] = "string"
    return Kind(schema, same(st.sampled_from(options)))


def _nullable(text: Any) -> tuple[Any, Any]:
    return (text, None if text == "null" else text)


@st.composite
def _unions(draw: st.DrawFn) -> Kind:
    """Scalars of several types."""
    integer, boolean, null = {"type": "integer"}, {"type": "boolean"}, {"type": "null"}
    number, text = {"type": "number"}, {"type": "string"}
    union = draw(st.sampled_from(["anyOf", "oneOf"]))
    kinds = [
        Kind({"type": ["string", "null"]}, TEXTS.map(_nullable)),
        Kind({union: [text, null]}, TEXTS.map(_nullable)),
        Kind({union: [null, text]}, TEXTS.map(_nullable)),
        Kind({"type": "string", "nullable": True}, TEXTS.map(_nullable)),
        Kind({"type": ["integer", "null"]}, same(INTEGERS)),
        Kind({union: [integer, boolean]}, same(st.one_of(INTEGERS, st.booleans()))),
        Kind({"type": ["number", "boolean", "null"]}, same(st.one_of(FLOATS, st.booleans()))),
        Kind({union: [integer, text]}, st.one_of(same(TEXTS), INTEGERS.map(lambda n: (n, str(n))))),
        Kind({union: [integer, {"const": "auto"}]}, same(st.one_of(INTEGERS, st.just("auto")))),
        Kind(
            {union: [{"enum": ["low", "high"]}, boolean, null]},
            same(st.one_of(st.sampled_from(["low", "high"]), st.booleans())),
        ),
        Kind({"allOf": [number, {"minimum": 0}]}, same(FLOATS)),
    ]
    return draw(st.sampled_from(kinds))


def kinds(depth: int) -> st.SearchStrategy[Kind]:
    """Any type, nested at most so deep."""
    if depth == 0:
        return scalars()
    return st.one_of(scalars(), objects(depth - 1), arrays(depth - 1), mixed(depth - 1))


@st.composite
def arrays(draw: st.DrawFn, depth: int) -> Kind:
    """An array."""
    if draw(st.integers(0, 5)) == 0:
        return Kind(
            {"type": "array"}, same(st.lists(ANYTHING.map(lambda pair: pair[0]), max_size=3))
        )
    if draw(st.integers(0, 5)) == 0:
        holes = st.lists(st.one_of(INTEGERS, st.none()), max_size=3)
        return Kind({"type": "array", "items": {"type": ["integer", "null"]}}, same(holes))
    if draw(st.integers(0, 5)) == 0:
        first, second = draw(kinds(depth)), draw(kinds(depth))
        word = draw(st.sampled_from(["prefixItems", "items"]))
        pairs = st.tuples(_present(first), _present(second))
        return Kind(
            {"type": "array", word: [first.schema, second.schema]},
            pairs.map(lambda found: ([v for v, _ in found], [e for _, e in found])),
        )
    item = draw(kinds(depth))
    schema: dict[str, Any] = {"items": item.schema}
    if item.schema is True or draw(st.integers(0, 3)):
        schema["type"] = "array"
    return Kind(schema, st.lists(_present(item), max_size=3).map(_transposed))


def _present(kind: Kind) -> st.SearchStrategy[tuple[Any, Any]]:
    """Values other than null, which the native form leaves out."""
    return kind.values.filter(lambda pair: pair[0] is not None)


def _transposed(pairs: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [value for value, _ in pairs], [expected for _, expected in pairs]


@st.composite
def objects(draw: st.DrawFn, depth: int) -> Kind:
    """An object: closed, open, a map, or free."""
    choice = draw(st.integers(0, 5))
    if choice == 0:
        item = draw(kinds(depth))
        if not isinstance(item.schema, dict) or not item.schema:
            return Kind({"type": "object"}, _members(dict.fromkeys(draw(_some_names()), item)))
        names = draw(st.lists(st.one_of(NAMES, PATHS), max_size=3, unique=True))
        ways: list[dict[str, Any]] = [
            {"additionalProperties": item.schema},
            {"patternProperties": {".*": item.schema}},
            {"patternProperties": {".*": item.schema}, "additionalProperties": False},
        ]
        rest = draw(st.sampled_from(ways))
        return Kind({"type": "object", **rest}, _members(dict.fromkeys(names, item)))
    if choice == 1:
        free = Kind({}, ANYTHING)
        names = draw(_some_names())
        return Kind({"type": "object"}, _members(dict.fromkeys(names, free)))
    return draw(declared(depth))


def _some_names() -> st.SearchStrategy[list[str]]:
    return st.lists(NAMES, max_size=3, unique=True)


@st.composite
def declared(draw: st.DrawFn, depth: int, *, least: int = 0) -> Kind:
    """An object with declared members; some of them are required, in an order of their own."""
    names = draw(st.lists(NAMES, min_size=least, max_size=4, unique=True))
    members = {name: draw(kinds(depth)) for name in names}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: kind.schema for name, kind in members.items()},
    }
    if draw(st.booleans()):
        schema["required"] = draw(st.permutations(names))[: draw(st.integers(0, len(names)))]
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(st.booleans())
    return Kind(schema, _members(members))


@st.composite
def _members(draw: st.DrawFn, kinds_by_name: dict[str, Kind]) -> tuple[Any, Any]:
    """Some of the members, in any order; those that are null are not told."""
    names = draw(st.permutations(list(kinds_by_name)))
    names = names[: draw(st.integers(0, len(names)))]
    found = {name: draw(_value(kinds_by_name[name])) for name in names}
    return (
        {name: value for name, (value, _) in found.items()},
        {name: expected for name, (value, expected) in found.items() if value is not None},
    )


@st.composite
def _value(draw: st.DrawFn, kind: Kind) -> tuple[Any, Any]:
    """A value of a type, or once in a while a word in its place."""
    return draw(MISFITS if draw(st.integers(0, 15)) == 0 else kind.values)


@st.composite
def mixed(draw: st.DrawFn, depth: int) -> Kind:
    """A structure or something else: text, null, another structure."""
    thing = draw(st.one_of(declared(depth, least=1), arrays(depth)))
    other = draw(st.sampled_from(["null", "text", "integer"]))
    union = draw(st.sampled_from(["anyOf", "oneOf"]))
    if other == "text":
        plain = TEXTS.filter(lambda text: not _begins_element(text))
        full = thing.values.filter(lambda pair: _full(pair[1]))
        return Kind({union: [{"type": "string"}, thing.schema]}, st.one_of(same(plain), full))
    if other == "integer":
        return Kind(
            {union: [thing.schema, {"type": "integer"}]}, st.one_of(thing.values, same(INTEGERS))
        )
    return Kind({union: [thing.schema, {"type": "null"}]}, thing.values)


def _full(value: Any) -> bool:
    """Tell whether a structure has anything inside: an empty one is written like empty text."""
    return bool(value)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool in OpenAI's form, and arguments for it."""

    name: str
    offered: dict[str, Any]
    arguments: st.SearchStrategy[tuple[Any, Any]] = field(repr=False)


@st.composite
def tools(draw: st.DrawFn, name: str) -> Tool:
    """A tool of that name."""
    parameters = draw(declared(2))
    schema, arguments = parameters.schema, parameters.values
    style = draw(st.integers(0, 5))
    if style == 0:
        schema = _moved(schema)
    if style == 2:
        schema = _with_tree(schema)
        arguments = st.tuples(arguments, st.dictionaries(st.just("tree"), TREES, max_size=1)).map(
            lambda found: ({**found[0][0], **found[1]}, {**found[0][1], **found[1]})
        )
    function: dict[str, Any] = {"name": name, "description": "Does it.", "parameters": schema}
    if style == 1:
        del function["parameters"]
        arguments = _members({"a": Kind({}, ANYTHING), "b": Kind({}, ANYTHING)})
    extra = st.dictionaries(st.just("undeclared"), FREE_TEXTS, max_size=1)
    both = st.tuples(arguments, extra).map(
        lambda found: ({**found[0][0], **found[1]}, {**found[0][1], **found[1]})
    )
    return Tool(name, {"type": "function", "function": function}, both)


@st.composite
def _trees(draw: st.DrawFn, depth: int) -> dict[str, Any]:
    """A value of a type that refers to itself."""
    tree: dict[str, Any] = {"label": draw(TEXTS), "count": draw(INTEGERS)}
    if depth:
        tree["children"] = draw(st.lists(_trees(depth - 1), max_size=2))
    return tree


TREES = _trees(3)


def _with_tree(schema: dict[str, Any]) -> dict[str, Any]:
    node = {
        "type": "object",
        "properties": {
            "label": {"type": "string"},
            "count": {"type": "integer"},
            "children": {"type": "array", "items": {"$ref": "#/definitions/Tree"}},
        },
    }
    reference = {"allOf": [{"$ref": "#/definitions/Tree"}]}
    properties = {**schema["properties"], "tree": reference}
    return {**schema, "properties": properties, "definitions": {"Tree": node}}


def _moved(schema: dict[str, Any]) -> dict[str, Any]:
    """Put the types of the arguments elsewhere and refer to them."""
    defs, properties = {}, {}
    for number, (name, kind) in enumerate(schema["properties"].items()):
        defs[f"T/{number}~<int>"] = kind
        properties[name] = {"$ref": f"#/$defs/T~1{number}~0%3Cint%3E", "description": "there"}
    return {**schema, "properties": properties, "$defs": defs}


_HYBRID_END = re.compile(
    r'</parameter>\s*(<parameter name="|</invoke>|$)'
    r'|</invoke>\s*(</minimax:tool_call>|<invoke name="|$)'
)


def expressible(style: Style, arguments: dict[str, Any]) -> bool:
    """Tell whether a style can tell these arguments from others.

    Native cannot tell the end tag of a value inside the value. What hybrid cannot is in the
    templates' README; null inside a structure it does tell, unlike native.
    """
    if style is Style.NATIVE:
        return not _holds_its_end(arguments, "")
    texts = [value for value in arguments.values() if isinstance(value, str)]
    return (
        not any('"' in name for name in arguments)
        and not any(_holds_null(value) for value in arguments.values())
        and not any(_HYBRID_END.search(text) for text in _texts(list(arguments.values())))
        and not any(text.lstrip()[:1] in ("{", "[") for text in texts)
    )


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *_texts(list(value.values()))]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value] if isinstance(value, str) else []


def _holds_its_end(value: Any, name: str) -> bool:
    if isinstance(value, dict):
        return any(_holds_its_end(member, key) for key, member in value.items())
    if isinstance(value, list):
        return any(_holds_its_end(item, "item") for item in value)
    end = f"{NAMESPACE}</{name}>"
    return isinstance(value, str) and (value + end).index(end) < len(value)


def _holds_null(value: Any) -> bool:
    members = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )
    return any(member is None or _holds_null(member) for member in members)


def read_as(style: Style, arguments: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """Return what a reader must make of arguments: hybrid tells the types inside a structure."""
    if style is Style.NATIVE:
        return expected
    structures = {n: v for n, v in arguments.items() if isinstance(v, dict | list)}
    return {name: structures.get(name, value) for name, value in expected.items()}
