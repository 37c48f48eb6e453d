"""Making a template of a style from a model's own one."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from ggufcluster import resources
from ggufcluster.core.chat_template import template_kind
from ggufcluster.core.template_style import (
    M3_FAMILY,
    PLACES,
    Style,
    best_style,
    family_of_template,
    make_template,
    style_of,
)
from ggufcluster.errors import TemplateAnchorError, TemplateFamilyError

SHAPE = (Path(__file__).parents[1] / "data" / "templates" / "m3-shape.jinja").read_text()


def blocks() -> dict[str, str]:
    """Our files under templates/, by name."""
    root = resources.templates()
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.jinja")}


def make(text: str, style: Style = Style.HYBRID) -> str:
    """Make a template of a style."""
    return make_template(text, style, blocks=blocks(), origin="some.gguf", path="/m/some.gguf")


def test_native_keeps_every_letter_behind_the_prelude() -> None:
    """The native style ends with the model's own template, unchanged."""
    made = make(SHAPE, Style.NATIVE)
    assert made.endswith(SHAPE)
    assert "thinking_mode = 'disabled'" in made.removesuffix(SHAPE)


def test_hybrid_replaces_three_places_and_nothing_else() -> None:
    """Outside three stretches of lines, the model's own template is still there, line by line."""
    own, made = SHAPE.splitlines(), make(SHAPE).splitlines()
    steps = difflib.SequenceMatcher(None, own, made, autojunk=False).get_opcodes()
    gone = {n for kind, start, end, *_ in steps if kind != "equal" for n in range(start, end)}
    numbers = {
        words: next(n for n, line in enumerate(own) if words in line)
        for words in ("toolcall_begin_token =", "toolcall_end_token =", "To call tools")
    }
    ends = [n for n, line in enumerate(own) if line.strip() == "{{- toolcall_end_token }}"]
    loop = next(n for n, line in enumerate(own) if "for tool_call in" in line)
    first, last, ask = numbers.values()
    assert gone <= {
        *range(first, last + 1),
        *range(ask, ends[0] + 1),
        *range(loop - 1, ends[1] + 1),
    }
    for place in ({first, last}, {ask, ask + 2}, {loop - 1, loop + 1, ends[1]}):
        assert place <= gone


def test_both_styles_get_the_parser_of_m3() -> None:
    """The engine reads both styles with its reader for MiniMax-M3."""
    assert template_kind(make(SHAPE, Style.NATIVE)) == "minimax-m3"
    assert template_kind(make(SHAPE, Style.HYBRID)) == "minimax-m3"


@pytest.mark.parametrize("style", Style)
def test_a_made_template_says_what_it_is(style: Style) -> None:
    """The first line names the style and where the template came from."""
    made = make(SHAPE, style)
    assert style_of(made) is style
    assert "some.gguf" in made.splitlines()[0]
    assert style_of(SHAPE) is None


def test_a_hostile_file_name_cannot_leave_its_comment() -> None:
    """The origin stands in a comment, whatever the file is called."""
    made = make_template(
        SHAPE, Style.NATIVE, blocks=blocks(), origin="x -#}{{ 7 * 7 }}\n{#", path="x"
    )
    assert "{{ 7 * 7 }}" not in made
    assert made.splitlines()[0].endswith("-#}")


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_place_that_is_gone_is_named(place: object) -> None:
    """A template without one of the places is refused, naming it and showing lines with tools."""
    first = place.first  # type: ignore[attr-defined]
    changed = "".join(
        line for line in SHAPE.splitlines(keepends=True) if not re.match(first, line.lstrip())
    )
    with pytest.raises(TemplateAnchorError, match="begins nowhere") as caught:
        make(changed)
    assert caught.value.place == place.name  # type: ignore[attr-defined]
    assert caught.value.excerpt


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
def test_a_place_that_is_there_twice_is_named(place: object) -> None:
    """A template with one of the places twice is refused, showing both lines with their numbers."""
    first = place.first  # type: ignore[attr-defined]
    doubled = "".join(
        line * (2 if re.match(first, line.lstrip()) else 1)
        for line in SHAPE.splitlines(keepends=True)
    )
    with pytest.raises(TemplateAnchorError, match="begins 2 times") as caught:
        make(doubled)
    assert caught.value.place == place.name  # type: ignore[attr-defined]
    assert len(caught.value.excerpt) == 2


def test_a_place_without_an_end_is_named() -> None:
    """A place whose last line is not found within its reach is refused."""
    changed = SHAPE.replace("{{- toolcall_end_token }}", "{{- other }}")
    with pytest.raises(TemplateAnchorError, match="has no end"):
        make(changed)


@pytest.mark.parametrize(
    ("text", "family"),
    [
        (SHAPE, M3_FAMILY),
        ("]~b]ai <minimax:tool_call>", "MiniMax-M2"),
        ("<|im_start|>user", "Qwen or another ChatML model"),
        ("{{ messages }}", "an unknown family"),
    ],
)
def test_families_are_told_apart(text: str, family: str) -> None:
    """A template's markers tell its family."""
    assert family_of_template(text) == family


def test_hybrid_of_another_family_is_refused_by_name() -> None:
    """Hybrid is made for M3 only; native takes the template as it is, without a prelude."""
    other = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
    with pytest.raises(TemplateFamilyError, match="ChatML"):
        make(other)
    assert make(other, Style.NATIVE).split("\n", 1)[1] == other


@pytest.mark.parametrize("style", Style)
def test_our_own_output_is_no_input(style: Style) -> None:
    """A template that was made here is not made into another one."""
    with pytest.raises(TemplateFamilyError, match="own output"):
        make(make(SHAPE, style), style)


@pytest.mark.parametrize(
    ("native", "hybrid", "best"),
    [(1, 2, Style.HYBRID), (2, 1, Style.NATIVE), (2, 2, Style.NATIVE)],
)
def test_the_better_score_decides(native: int, hybrid: int, best: Style) -> None:
    """The style with more cases right is taken; on a tie the model's own."""
    assert best_style({"native": native, "hybrid": hybrid}) is best
