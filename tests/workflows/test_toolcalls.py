"""Reading the corpus and counting what went right; tests/engine runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.template_style import Style
from ggufcluster.core.toolcall_case import Case, CaseError
from ggufcluster.core.toolcall_request import ALL_WAYS, Way, first_request, ways_of
from ggufcluster.workflows.toolcalls import Outcome, read_corpus, score

if TYPE_CHECKING:
    from pathlib import Path

CASE = '[[case]]\nname = "a"\nabout = "x"\nwrites = "y"\ncontent = "y"\n'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_a_name_may_stand_in_one_file_only(tmp_path: Path) -> None:
    """Two cases of one name are refused, naming the second file."""
    (tmp_path / "tools.json").write_text("[]")
    (tmp_path / "1.toml").write_text(CASE)
    assert [case.name for case in read_corpus(tmp_path)] == ["a"]
    (tmp_path / "2.toml").write_text(CASE)
    with pytest.raises(CaseError, match=r"2\.toml"):
        read_corpus(tmp_path)


def test_a_case_counts_only_if_every_way_went_right() -> None:
    """One failure in one way costs the case; other styles do not count."""
    one, two = (Case(name, "x", "y") for name in ("one", "two"))
    outcomes = [
        Outcome(one, Style.NATIVE, ALL_WAYS[0], ()),
        Outcome(one, Style.NATIVE, ALL_WAYS[1], ("wrong",)),
        Outcome(two, Style.NATIVE, ALL_WAYS[0], ()),
        Outcome(two, Style.HYBRID, ALL_WAYS[0], ("wrong",)),
    ]
    found = score(outcomes, Style.NATIVE)
    assert (found.right, found.total) == (1, 2)


def test_a_case_is_put_in_the_ways_that_make_sense() -> None:
    """Nothing is required where no tool is offered; strict answers are OpenAI's alone."""
    plain = list(ways_of(Case("a", "x", "y")))
    tools = list(ways_of(Case("a", "x", "y", tools=(TOOL,), choices=("auto", "required"))))
    strict = list(ways_of(Case("a", "x", "y", schema={"type": "object"})))
    assert {way.choice for way in plain} == {"auto"}
    assert len(tools) == len(ALL_WAYS) == 8
    assert {way.dialect for way in strict} == {"openai"}


def test_both_dialects_ask_for_the_same() -> None:
    """Tools, choice, limit and the wish not to think are said in each API's own words."""
    case = Case("a", "x", "y", tools=(TOOL,), thinking="disabled", choices=("required",))
    one = first_request(case, Way("openai", "required", streamed=True), limit=7)
    other = first_request(case, Way("anthropic", "required", streamed=True), limit=7)
    assert one["tool_choice"] == "required"
    assert other["tool_choice"] == {"type": "any"}
    assert one["reasoning_effort"] == "none"
    assert other["thinking"] == {"type": "disabled"}
    assert other["tools"][0]["input_schema"] == {"type": "object"}
    assert (one["max_tokens"], one["stream"]) == (other["max_tokens"], other["stream"]) == (7, True)
    assert one["messages"] == other["messages"]
