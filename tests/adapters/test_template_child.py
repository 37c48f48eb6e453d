"""Rendering a stranger's template in a process of its own."""

from __future__ import annotations

import pytest

from ggufcluster.adapters import template_child
from ggufcluster.adapters.local import LocalRemote
from ggufcluster.adapters.template_child import render_apart
from ggufcluster.core.chat_template import MOST_PROMPT, Rendered
from ggufcluster.errors import TemplateError


def render(text: str, **variables: object) -> Rendered:
    """Render one template with one set of variables."""
    (one,) = render_apart(LocalRemote(), text, [variables], path="/t")
    return one


def test_each_set_of_variables_gets_its_prompt() -> None:
    """Answers come in the order of the questions; one failure leaves the others alone."""
    text = "{{ raise_exception('no') if bad else 'Grüße ' ~ name }}"
    answers = render_apart(
        LocalRemote(), text, [{"name": "東"}, {"bad": True}, {"name": "x"}], path="/t"
    )
    assert answers == [Rendered("Grüße 東"), Rendered(failure="no"), Rendered("Grüße x")]


def test_json_is_written_as_llama_server_does() -> None:
    """Letters stay as they are unless asked otherwise; white space is Python's."""
    assert render("{{ v | tojson }}", v={"ä": [1, "<&>"]}).text == '{"ä": [1, "<&>"]}'
    assert render("{{ v | tojson(ensure_ascii=True) }}", v="ä").text == '"\\u00e4"'


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self._TemplateReference__context }}{{ lipsum.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.getcwd() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_hostile_template_reaches_nothing(text: str) -> None:
    """Ways out of the sandbox, to files and into the caller's values give no letter."""
    assert not render(text, messages=[]).text


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 7 ** (7 ** (7 ** 7)) }}",
    ],
    ids=["loop", "power while compiling"],
)
def test_a_template_that_never_ends_is_ended(text: str) -> None:
    """Time of its own is limited, also while the template is compiled."""
    with pytest.raises(TemplateError, match="too much time or memory"):
        render_apart(LocalRemote(), text, [{}], path="/t", cpu_seconds=2)


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 10 ** 11 }}",
        "{% for a in range(9999) %}{{ 'a' * 9999 }}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
    ids=["memory", "output", "recursion"],
)
def test_memory_output_and_depth_are_limited(text: str) -> None:
    """A template that wants too much fails, and takes nothing down with it."""
    answer = render(text)
    assert answer.failure
    assert len(answer.text) < MOST_PROMPT


def test_a_giant_template_is_not_even_started() -> None:
    """A text that is no template by its size is refused at once."""
    with pytest.raises(TemplateError, match="more than any template"):
        render("x" * (template_child.MOST_TEMPLATE + 1))


def test_a_syntax_error_names_its_line() -> None:
    """A template that does not parse says where."""
    assert "line 2" in render("a\n{% if %}").failure


def test_the_childs_environment_does_not_leak_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the environment and Python's own switches do not change a prompt."""
    monkeypatch.setenv("PYTHONSTARTUP", "/nonexistent")
    monkeypatch.setenv("SECRET", "hidden")
    assert render("{{ SECRET }}{{ environ }}|").text == "|"
