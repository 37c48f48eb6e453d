"""Judging a chat template before a load."""

from __future__ import annotations

import pytest

from ggufcluster import resources
from ggufcluster.core.chat_template import CONTEXTS, judge, render, template_kind
from ggufcluster.errors import TemplateError

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"


def test_kind_follows_the_marks_of_the_text() -> None:
    """All three marks make it MiniMax-M3's, any other text is generic, no text is none."""
    toy = (resources.templates() / "toy" / "minimax-m3-toy.jinja").read_text(encoding="utf-8")
    assert template_kind(toy) == "minimax-m3"
    assert template_kind(PLAIN) == "generic"
    assert template_kind("<tool_call> <invoke name=") == "generic"
    assert template_kind("") == template_kind(None) == "none"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}",
        "{{ messages | tojson(ensure_ascii=False, indent=2) }}",
        "{{ strftime_now('%Y') }}{{ messages[0].content }}",
        "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
    ],
    ids=["text", "parts", "tojson", "time", "break"],
)
def test_templates_of_the_field_pass(text: str) -> None:
    """What llama.cpp's own engine renders is not refused here."""
    judge(render(text, CONTEXTS), path="t.jinja")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{% for m in %}", "line 1"),
        ("{{ messages[0].content", "line 1"),
        ("{{ 1 // 0 }}", "does not render"),
        ("{{ missing.name }}", "does not render"),
        ("{{ raise_exception('no system message') }}", "no system message"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "does not render"),
        ("{{ messages.__class__.__mro__ }}{{ messages[0].content }}", "unsafe"),
        ("{{ messages.append(1) }}{{ messages[0].content }}", "unsafe"),
        ("A text without the message.", "without the user's message"),
    ],
    ids=["syntax", "open", "division", "undefined", "raise", "endless", "escape", "change", "lost"],
)
def test_a_bad_template_is_refused_with_its_file_and_reason(text: str, reason: str) -> None:
    """The error names the file and what is wrong with it, and nothing but that error comes out."""
    with pytest.raises(TemplateError, match=r"^chat template t\.jinja: ") as caught:
        judge(render(text, CONTEXTS), path="t.jinja")
    assert reason in caught.value.reason
    assert caught.value.path == "t.jinja"
