"""Reading, making and checking chat templates, without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.gguf_write import GgufModel, string
from ggufcluster.core.template_style import Style, style_of
from ggufcluster.errors import (
    LocalFileError,
    ModelMissingError,
    NotGgufError,
    TemplateAnchorError,
    TemplateError,
    TemplateFamilyError,
    TemplateMissingError,
    TemplateRenderError,
    TruncatedModelError,
)
from ggufcluster.workflows.events import Note, Warned, drain
from ggufcluster.workflows.templates import (
    FoundTemplate,
    check,
    first_difference,
    read_gguf_template,
    read_template_file,
    regenerate,
)

if TYPE_CHECKING:
    from ggufcluster.workflows.events import Event, Workflow

SHAPE = (Path(__file__).parents[1] / "data" / "templates" / "m3-shape.jinja").read_text()
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content if"
    " message.content is string else message.content[0].text }}<|im_end|>\n{% endfor %}"
)


def gguf(path: Path, **templates: str) -> Path:
    """Write a GGUF without tensors that holds these templates, `default` under the plain key."""
    metadata = {"general.architecture": string("minimax-m3")}
    for name, text in templates.items():
        suffix = "" if name == "default" else f".{name}"
        metadata[f"tokenizer.chat_template{suffix}"] = string(text)
    path.write_bytes(GgufModel(metadata, []).to_bytes())
    return path


def events_of(workflow: Workflow[object]) -> list[Event]:
    """Run a workflow to its end and return what it told."""
    return list(workflow)


def regen(found: FoundTemplate, out: Path, style: Style = Style.HYBRID, **options: bool) -> str:
    """Make a template without an engine."""
    return drain(regenerate(found, style, out, local=LocalRemote(), outside=None, **options))


def test_any_shard_leads_to_the_first(tmp_path: Path) -> None:
    """The template of a split model is read from its first shard, whichever is named."""
    first = gguf(tmp_path / "m-00001-of-00002.gguf", default="one")
    other = gguf(tmp_path / "m-00002-of-00002.gguf", default="other")
    found = read_gguf_template(other)
    assert (found.text, found.path) == ("one", str(first))


def test_a_missing_first_shard_is_named(tmp_path: Path) -> None:
    """A later shard alone does not do."""
    other = gguf(tmp_path / "m-00002-of-00002.gguf", default="other")
    with pytest.raises(ModelMissingError, match="m-00001-of-00002"):
        read_gguf_template(other)


def test_of_several_templates_the_default_is_taken_and_named(tmp_path: Path) -> None:
    """The unnamed one is taken unless another is asked for; the origin says which."""
    path = gguf(tmp_path / "m.gguf", default="plain", tool_use="tools", rag="rag")
    found = read_gguf_template(path)
    assert (found.text, found.names) == ("plain", ("default", "tool_use", "rag"))
    assert found.origin == "m.gguf, template default"
    assert read_gguf_template(path, "rag").text == "rag"
    with pytest.raises(TemplateMissingError, match="none is named other"):
        read_gguf_template(path, "other")


def test_without_a_default_tool_use_is_taken(tmp_path: Path) -> None:
    """Named templates alone: `tool_use`, else the only one, else the user must say."""
    assert read_gguf_template(gguf(tmp_path / "a.gguf", tool_use="t", rag="r")).text == "t"
    assert read_gguf_template(gguf(tmp_path / "b.gguf", rag="r")).text == "r"
    with pytest.raises(TemplateMissingError, match="rag, chat"):
        read_gguf_template(gguf(tmp_path / "c.gguf", rag="r", chat="c"))


def test_files_that_hold_no_template_are_told_apart(tmp_path: Path) -> None:
    """Not there, no GGUF, cut short, none inside, empty: an error of its own each."""
    path = tmp_path / "m.gguf"
    with pytest.raises(ModelMissingError):
        read_gguf_template(path)
    path.write_bytes(b"<!DOCTYPE html>" * 10)
    with pytest.raises(NotGgufError):
        read_gguf_template(path)
    path.write_bytes(gguf(path, default=SHAPE).read_bytes()[:400])
    with pytest.raises(TruncatedModelError):
        read_gguf_template(path)
    with pytest.raises(TemplateMissingError, match="brings no chat template"):
        read_gguf_template(gguf(path))
    with pytest.raises(TemplateMissingError, match="is empty"):
        read_gguf_template(gguf(path, default=" \n"))


def test_a_template_file_must_be_text(tmp_path: Path) -> None:
    """A GGUF where a template belongs is told as such."""
    with pytest.raises(TemplateError, match="--gguf"):
        read_template_file(gguf(tmp_path / "m.gguf", default="x"))
    (tmp_path / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(TemplateError, match="not UTF-8"):
        read_template_file(tmp_path / "b")
    with pytest.raises(TemplateError, match="cannot be read"):
        read_template_file(tmp_path / "nowhere")


@pytest.mark.parametrize("style", Style)
def test_both_styles_of_a_template_are_written(tmp_path: Path, style: Style) -> None:
    """A template passes its checks in both styles and lies there whole."""
    out = tmp_path / "made" / "t.jinja"
    text = regen(FoundTemplate(SHAPE, "/m.gguf"), out, style)
    assert out.read_text() == text
    assert style_of(text) is style
    assert [path.name for path in out.parent.iterdir()] == ["t.jinja"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (CHATML, TemplateFamilyError),
        (SHAPE.replace("To call tools", "Tools are called"), TemplateAnchorError),
        (SHAPE.replace("words(message.content) ~ eos_token", "eos_token"), TemplateRenderError),
        (SHAPE + "{{ raise_exception('not today') }}", TemplateRenderError),
        (SHAPE + "{% if %}", TemplateRenderError),
        (SHAPE + "{{ ''.__class__.__mro__ }}", TemplateRenderError),
    ],
)
def test_after_a_failure_nothing_is_written(
    tmp_path: Path, text: str, error: type[TemplateError]
) -> None:
    """Whatever is wrong, an older file stays as it was and no other appears."""
    out = tmp_path / "t.jinja"
    regen(FoundTemplate(SHAPE, "/m.gguf"), out)
    before = out.read_bytes()
    with pytest.raises(error):
        regen(FoundTemplate(text, "/m.gguf"), out)
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_somebody_elses_file_is_left_alone(tmp_path: Path) -> None:
    """A file that was not made here is replaced on request only."""
    out = tmp_path / "mine.jinja"
    out.write_text("my own words")
    with pytest.raises(LocalFileError, match="not written by ggufcluster"):
        regen(FoundTemplate(SHAPE, "/m.gguf"), out)
    assert out.read_text() == "my own words"
    regen(FoundTemplate(SHAPE, "/m.gguf"), out, replace=True)
    assert style_of(out.read_text()) is Style.HYBRID


def test_the_failing_conversation_is_named() -> None:
    """An error says for which conversation a template fails, and why."""
    text = SHAPE.replace(
        "{%- elif message.role == 'tool' -%}",
        "{%- elif message.role == 'tool' -%}{{- raise_exception('no results, please') }}",
    )
    with pytest.raises(TemplateRenderError, match="no results, please") as caught:
        drain(check(FoundTemplate(text, "/t"), local=LocalRemote(), outside=None))
    assert caught.value.conversation == "a call and its result"


def test_a_template_that_drops_a_result_fails() -> None:
    """Rendering is not enough: the prompt must hold what was said."""
    text = SHAPE.replace("'\\n<response>' ~ words(message.content)", "'\\n<response>'")
    with pytest.raises(TemplateRenderError, match="lacks 'sunny"):
        drain(check(FoundTemplate(text, "/t"), local=LocalRemote(), outside=None))


def test_wishes_that_go_unheard_are_told_of_the_models_own() -> None:
    """The model's own template passes, with a warning for each way to ask that it ignores."""
    found = FoundTemplate(SHAPE, "/t")
    told = events_of(check(found, local=LocalRemote(), outside=None))
    unheard = [event.text for event in told if isinstance(event, Warned)]
    assert any("enable_thinking false" in text for text in unheard)
    assert not any("thinking_mode" in text.split(" goes ")[0] for text in unheard)


def test_wishes_that_go_unheard_fail_a_template_made_here() -> None:
    """A template of ours that loses its prelude is refused."""
    text = "{#- ggufcluster: style native, made from x -#}\n" + SHAPE
    with pytest.raises(TemplateRenderError, match="the prompt says adaptive, not disabled"):
        drain(check(FoundTemplate(text, "/t"), local=LocalRemote(), outside=None))


def test_a_template_of_another_family_is_checked_for_what_it_knows() -> None:
    """A template that knows no tools is not asked for them."""
    names = drain(check(FoundTemplate(CHATML, "/t"), local=LocalRemote(), outside=None))
    assert "one question" in names
    assert not any("tool" in name or "thinking" in name for name in names)


def test_which_of_several_templates_was_used_is_told(tmp_path: Path) -> None:
    """A note names the one that was taken and the others."""
    found = FoundTemplate(SHAPE, "/m.gguf", "default", ("default", "tool_use"))
    work = regenerate(found, Style.NATIVE, tmp_path / "t", local=LocalRemote(), outside=None)
    notes = [event.text for event in events_of(work) if isinstance(event, Note)]
    assert notes == ["of 2 templates (default, tool_use): default"]


@pytest.mark.parametrize(
    ("one", "other", "place"), [("abc", "abd", 2), ("ab", "abc", 2), ("", "x", 0)]
)
def test_the_first_difference_is_shown(one: str, other: str, place: int) -> None:
    """Both prompts are shown from a little before the place where they part."""
    first, ours, theirs = first_difference(one, other)
    assert first == f"they part after {place} letters"
    assert repr(one) in ours
    assert repr(other) in theirs
