"""Turn a model's own chat template into one of our two styles.

`native` keeps the template. `hybrid` keeps roles, thinking and results, and replaces exactly three
places of MiniMax-M3's template by a simple tool-call form. The places are found by how their first
and last lines begin; each must be there exactly once, else nothing is replaced. Both styles get a
prelude that maps what clients ask about thinking to the template's `thinking_mode`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ggufcluster.errors import TemplateAnchorError, TemplateFamilyError

if TYPE_CHECKING:
    from collections.abc import Mapping

M3_FAMILY = "MiniMax-M3"
PRELUDE = "minimax-m3/prelude.jinja"
_MADE_BY_US = "{#- ggufcluster: style "
_MOST_LINES = 40

# Told apart by markers that a template cannot do without; the first that fits is taken.
_FAMILIES = (
    (M3_FAMILY, ("]<]minimax[>[", "<mm:think>", "thinking_mode")),
    ("MiniMax-M2", ("<minimax:tool_call>", "]~b]")),
    ("gpt-oss", ("<|channel|>",)),
    ("DeepSeek", ("<\uff5c",)),
    ("Qwen or another ChatML model", ("<|im_start|>",)),
    ("Llama", ("<|start_header_id|>",)),
    ("Gemma", ("<start_of_turn>",)),
    ("Mistral", ("[INST]",)),
    ("Kimi", ("<|im_middle|>",)),
    ("GLM", ("[gMASK]",)),
)


class Style(Enum):
    """How calls are written and which parser of llama-server reads them."""

    NATIVE = "native"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class Place:
    """One place of a template that hybrid replaces.

    Attributes:
        name: Name for people.
        block: Our file under templates/ that takes its place.
        first: How its first line reads, as a pattern over the line without its indentation.
        last: How its last line reads; the first such line after `first` counts.
    """

    name: str
    block: str
    first: str
    last: str


_SET = r"\{%-?\s*set\s+"
_PUT = r"\{\{-?\s*"

PLACES = (
    Place(
        "token definitions",
        "minimax-m3/hybrid/token-definitions.jinja",
        first=_SET + r"toolcall_begin_token\s*=",
        last=_SET + r"toolcall_end_token\s*=",
    ),
    Place(
        "tool instructions",
        "minimax-m3/hybrid/tool-instructions.jinja",
        first=_PUT + r"['\"]To call tools\b",
        last=_PUT + r"toolcall_end_token\s*-?\}\}",
    ),
    Place(
        "renderer of past calls",
        "minimax-m3/hybrid/past-calls.jinja",
        first=_PUT + r"toolcall_begin_token\b",
        last=_PUT + r"toolcall_end_token\s*-?\}\}",
    ),
)


def family_of_template(text: str) -> str:
    """Name the family that a template belongs to, or `an unknown family`."""
    for family, marks in _FAMILIES:
        if all(mark in text for mark in marks):
            return family
    return "an unknown family"


def best_style(right: Mapping[str, int]) -> Style:
    """Return the style with the most cases right; native on a tie."""
    return max(Style, key=lambda style: (right[style.value], style is Style.NATIVE))


def style_of(text: str) -> Style | None:
    """Return the style of a template that was made here, None for any other."""
    found = re.match(re.escape(_MADE_BY_US) + r"(\w+)", text)
    return Style(found[1]) if found and found[1] in {style.value for style in Style} else None


def make_template(
    text: str, style: Style, *, blocks: Mapping[str, str], origin: str, path: str
) -> str:
    """Make a template of a style from a model's own one.

    Args:
        text: The model's own template.
        style: The style wanted.
        blocks: Our files under templates/, by their names there.
        origin: Where the template was taken from, for its first line.
        path: Where the template was taken from, for errors.

    Raises:
        TemplateFamilyError: Hybrid is wanted of a template of another family, or the template
            was made here already.
        TemplateAnchorError: A place of hybrid's is not there exactly once.
    """
    family = family_of_template(text)
    if style_of(text) is not None:
        raise TemplateFamilyError("ggufcluster's own output", path=path)
    if family != M3_FAMILY and style is Style.HYBRID:
        raise TemplateFamilyError(family, path=path)
    if style is Style.HYBRID:
        text = _transplant(text, blocks, path)
    prelude = blocks[PRELUDE] if family == M3_FAMILY else ""
    label = re.sub(r"[^\w .,:/()=-]", "_", origin)
    return f"{_MADE_BY_US}{style.value}, made from {label} -#}}\n{prelude}{text}"


def _transplant(text: str, blocks: Mapping[str, str], path: str) -> str:
    lines = text.splitlines(keepends=True)
    found = [(_locate(lines, place, path), place) for place in PLACES]
    for (first, end), place in sorted(found, key=lambda item: item[0], reverse=True):
        lines[first:end] = [blocks[place.block]]
    return "".join(lines)


def _locate(lines: list[str], place: Place, path: str) -> tuple[int, int]:
    """Return the first line of a place and the line after it."""
    starts = [n for n, line in enumerate(lines) if re.match(place.first, line.lstrip())]
    if len(starts) != 1:
        told = "begins nowhere" if not starts else f"begins {len(starts)} times"
        raise TemplateAnchorError(
            place.name, reason=told, excerpt=_excerpt(lines, starts), path=path
        )
    start = starts[0]
    for number in range(start, min(start + _MOST_LINES, len(lines))):
        if re.match(place.last, lines[number].lstrip()):
            return start, number + 1
    shown = _excerpt(lines, range(start, start + 3))
    raise TemplateAnchorError(place.name, reason="has no end", excerpt=shown, path=path)


def _excerpt(lines: list[str], numbers: list[int] | range) -> tuple[str, ...]:
    """Show the lines of a failure; without any, those that speak of tools."""
    chosen = list(numbers) or [n for n, line in enumerate(lines) if "tool" in line.lower()][:12]
    return tuple(f"{n + 1}: {lines[n].rstrip()[:100]}" for n in chosen if n < len(lines))
