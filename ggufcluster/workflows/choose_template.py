"""Decide with which chat template a model is served, and have it as a file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster import resources
from ggufcluster.adapters.files import replace_file
from ggufcluster.adapters.template_child import render_apart
from ggufcluster.core.chat_template import CONTEXTS, judge, template_kind
from ggufcluster.core.template_style import M3_FAMILY, Style, best_style, family_of_template
from ggufcluster.errors import ConfigError, TemplateAnchorError
from ggufcluster.workflows.events import Note, Workflow
from ggufcluster.workflows.templates import FoundTemplate, make_style, read_template_file

if TYPE_CHECKING:
    from pathlib import Path

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.wish import Wish

_OWN = "the model's own"


@dataclass(frozen=True, slots=True)
class ChosenTemplate:
    """A template; `file` is None if the model's own one is taken from the model."""

    file: Path | None
    label: str


def choose_template(
    wish: Wish,
    own: str | None,
    model: Path,
    *,
    remote: Remote,
    state: Path,
    write: bool = True,
) -> Workflow[ChosenTemplate]:
    """Choose a template, and check that it renders before anything is loaded behind it.

    Args:
        wish: Names a file, or a style to make of the model's own template.
        own: The model's own template, or None.
        model: The model's first shard.
        remote: This machine.
        state: Folder under which a template that is made is kept.
        write: Whether to write it; without, its file is only named.

    Raises:
        ConfigError: A file and a style are both asked for.
        TemplateError: Of the kind that tells what is wrong.
    """
    if wish.template is not None:
        if wish.template_style != "auto":
            raise ConfigError("a template file has its own style", source="template_style")
        found = read_template_file(wish.template)
        _check(remote, found.text, str(wish.template))
        return ChosenTemplate(wish.template, f"{template_kind(found.text)}, {wish.template}")
    if not own:
        return ChosenTemplate(None, "none")
    _check(remote, own, str(model))
    style, text = yield from _styled(FoundTemplate(own, str(model)), wish.template_style)
    if style is None:
        return ChosenTemplate(None, f"{template_kind(own)}, {_OWN}")
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    file = state / "templates" / f"{style.value}-{name}.jinja"
    _check(remote, text, str(model))
    if write:
        replace_file(file, text.encode())
    return ChosenTemplate(file, f"{template_kind(text)}, {_OWN} in {style.value} style")


def _styled(found: FoundTemplate, wanted: str) -> Workflow[tuple[Style | None, str]]:
    """Make the style that is wanted; with ``auto`` the one that scores best, if it can be made."""
    if wanted == "own" or (wanted == "auto" and family_of_template(found.text) != M3_FAMILY):
        return None, found.text
    if wanted != "auto":
        return Style(wanted), make_style(found, Style(wanted))
    style = best_style(read_scores())
    try:
        return style, make_style(found, style)
    except TemplateAnchorError as error:
        yield Note(f"native template style, since for hybrid {error}")
    return Style.NATIVE, make_style(found, Style.NATIVE)


def read_scores() -> dict[str, int]:
    """Read how many cases of the corpus each style gets right with this package's engine."""
    path = resources.templates() / "minimax-m3" / "scores.json"
    scores = json.loads(path.read_text(encoding="utf-8"))
    return {style.value: int(scores[style.value]) for style in Style}


def _check(remote: Remote, text: str, path: str) -> None:
    judge(render_apart(remote, text, CONTEXTS, path=path), path=path)
