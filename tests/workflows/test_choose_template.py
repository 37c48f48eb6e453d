"""Choosing the template with which `up` serves a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.template_style import Style, style_of
from ggufcluster.core.wish import Wish
from ggufcluster.errors import ConfigError, TemplateAnchorError, TemplateError, TemplateFamilyError
from ggufcluster.workflows import choose_template as module
from ggufcluster.workflows.choose_template import choose_template, read_scores
from ggufcluster.workflows.events import Note, drain

if TYPE_CHECKING:
    from ggufcluster.workflows.choose_template import ChosenTemplate

SHAPE = (Path(__file__).parents[1] / "data" / "templates" / "m3-shape.jinja").read_text()
OTHER = "{% for message in messages %}{{ message.content }}{% endfor %}"
MODEL = Path("/models/m.gguf")
WISH = Wish(("local",))


def choose(own: str | None, state: Path, wish: Wish = WISH, **options: bool) -> ChosenTemplate:
    """Choose with a real sandbox."""
    return drain(choose_template(wish, own, MODEL, remote=LocalRemote(), state=state, **options))


@pytest.fixture(params=list(Style), ids=lambda style: style.value)
def better(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Style:
    """A style that scores better than the other."""
    style: Style = request.param
    scores = {one.value: 2 if one is style else 1 for one in Style}
    monkeypatch.setattr(module, "read_scores", lambda: scores)
    return style


def test_the_better_style_is_made_and_kept(tmp_path: Path, better: Style) -> None:
    """Without a wish the style that scores better is written, once, and named."""
    chosen = choose(SHAPE, tmp_path)
    assert chosen.file is not None
    assert style_of(chosen.file.read_text()) is better
    assert f"{better.value} style" in chosen.label
    assert choose(SHAPE, tmp_path).file == chosen.file
    assert list(chosen.file.parent.iterdir()) == [chosen.file]


@pytest.mark.parametrize("style", ["native", "hybrid"])
def test_a_wished_style_is_made(tmp_path: Path, style: str) -> None:
    """--template-style decides whatever the scores are."""
    chosen = choose(SHAPE, tmp_path, replace(WISH, template_style=style))
    assert chosen.file is not None
    found = style_of(chosen.file.read_text())
    assert found is not None
    assert found.value == style


def test_own_takes_the_template_as_it_is(tmp_path: Path) -> None:
    """With `own` nothing is made of the model's template."""
    chosen = choose(SHAPE, tmp_path, replace(WISH, template_style="own"))
    assert (chosen.file, chosen.label) == (None, "minimax-m3, the model's own")


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    """The file is named, not written."""
    chosen = choose(SHAPE, tmp_path, write=False)
    assert chosen.file is not None
    assert not chosen.file.exists()
    assert list(tmp_path.iterdir()) == []


def test_other_families_keep_their_template(tmp_path: Path) -> None:
    """Without a wish nothing is made of a template that is not M3's; hybrid of it is refused."""
    assert choose(OTHER, tmp_path).file is None
    with pytest.raises(TemplateFamilyError):
        choose(OTHER, tmp_path, replace(WISH, template_style="hybrid"))


def test_a_changed_template_falls_back_to_native(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where hybrid cannot be made, native is taken and the reason told; a wish is an error."""
    monkeypatch.setattr(module, "read_scores", lambda: {"native": 1, "hybrid": 2})
    changed = SHAPE.replace("To call tools", "Tools are called")
    work = choose_template(WISH, changed, MODEL, remote=LocalRemote(), state=tmp_path)
    told = [event.text for event in work if isinstance(event, Note)]
    assert len(told) == 1
    assert "tool instructions" in told[0]
    chosen = choose(changed, tmp_path)
    assert chosen.file is not None
    assert style_of(chosen.file.read_text()) is Style.NATIVE
    with pytest.raises(TemplateAnchorError):
        choose(changed, tmp_path, replace(WISH, template_style="hybrid"))


def test_a_file_decides_alone(tmp_path: Path) -> None:
    """A template file is taken as it is; a style beside it is contradictory."""
    file = tmp_path / "t.jinja"
    file.write_text(OTHER)
    wish = replace(WISH, template=file)
    assert choose(SHAPE, tmp_path, wish).file == file
    with pytest.raises(ConfigError, match="own style"):
        choose(SHAPE, tmp_path, replace(wish, template_style="native"))
    file.write_text("{{ 1/0 }}")
    with pytest.raises(TemplateError, match=r"t\.jinja"):
        choose(SHAPE, tmp_path, wish)


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    """Nothing is made of nothing."""
    assert choose(None, tmp_path).label == "none"


def test_scores_are_there_for_both_styles() -> None:
    """The package brings a score for each style."""
    assert set(read_scores()) == {style.value for style in Style}
