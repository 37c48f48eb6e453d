"""Reading the corpus of tool calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ggufcluster.core.template_style import Style
from ggufcluster.core.toolcall_case import (
    Case,
    CaseError,
    expected_content,
    parse_cases,
    parse_tools,
    written_text,
)
from ggufcluster.core.toy_vocabulary import NAMESPACE

FOLDER = Path(__file__).parents[1] / "data" / "toolcalls"
TOOLS = parse_tools((FOLDER / "tools.json").read_text())
CASES: dict[str, Case] = {
    case.name: case
    for path in sorted(FOLDER.glob("*.toml"))
    for case in parse_cases(path.read_text(), TOOLS, file=path.name)
}
SIMPLE = """
[[case]]
name = "simple"
about = "a call"
tools = ["get_time"]
writes = '''
§<tool_call>
§<invoke name="get_time">§</invoke>
§</tool_call>'''
calls = [["get_time", "{}"]]
"""


def test_the_corpus_is_large_enough() -> None:
    """There are at least sixty cases, of every file, under names of their own."""
    count = sum(path.read_text().count("[[case]]") for path in FOLDER.glob("*.toml"))
    assert len(CASES) == count >= 60


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_expected_arguments_follow_from_what_is_written(case: Case) -> None:
    """Every argument that is expected is written, and every text that is expected is too."""
    for call in case.calls:
        assert f'<invoke name="{call.name}">' in case.writes
        for name, value in call.arguments.items():
            assert f"<{name}>" in case.writes
            if isinstance(value, str):
                assert value in case.writes
    assert case.reasoning in case.writes
    for line in expected_content(case, Style.NATIVE).splitlines():
        assert line in case.writes


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_cases_agree_with_themselves(case: Case) -> None:
    """Calls, finish reason, results and tools of a case belong together."""
    if case.finish != "length":
        assert (case.finish == "tool_calls") == bool(case.calls)
    assert (case.finish == "length") == (case.cut_after is not None)
    assert len(case.results) in {0, len(case.calls)}
    assert bool(case.results) == bool(case.answers) == bool(case.answer)
    if case.schema is not None and not case.calls:
        json.loads(case.content)
    if "required" in case.choices:
        assert case.calls or not case.tools or case.schema or case.finish == "length"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_hybrid_text_has_no_native_marker(case: Case) -> None:
    """What the model writes in the hybrid format speaks that format alone."""
    text = written_text(case, Style.HYBRID)
    if case.name == "markers-in-reasoning":
        return
    assert NAMESPACE not in text
    for call in case.calls:
        assert f'<invoke name="{call.name}">' in text


def test_structures_become_json_in_hybrid() -> None:
    """A value with elements is JSON there, a text stays as it is."""
    text = written_text(CASES["array-of-objects"], Style.HYBRID)
    assert '<parameter name="title">Party</parameter>' in text
    guests = text.split('<parameter name="guests">')[1].split("</parameter>")[0]
    assert json.loads(guests) == CASES["array-of-objects"].calls[0].arguments["guests"]


def test_raw_content_is_what_was_written_in_that_style() -> None:
    """An unreadable call comes back in the words of its style."""
    case = CASES["call-with-wrong-end"]
    assert expected_content(case, Style.NATIVE) == case.writes
    assert expected_content(case, Style.HYBRID) == case.hybrid


def test_a_simple_case_is_read() -> None:
    """Defaults follow from the calls; the sign becomes the namespace token."""
    (case,) = parse_cases(SIMPLE, TOOLS, file="f.toml")
    assert case.finish == "tool_calls"
    assert case.choices == ("auto", "required")
    assert case.writes.startswith(f"{NAMESPACE}<tool_call>\n")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "simple"', 'name = "Not so"', "lower-case"),
        ('about = "a call"', 'abuot = "a call"', "abuot"),
        ('["get_time"]', '["get_tim"]', "get_tim"),
        ('"{}"', '"[1]"', "arguments are an object"),
        ('"{}"', '"{"', "case simple"),
        ('about = "a call"', 'about = "x"\nfinish = "done"', "done"),
        ('about = "a call"', 'about = "x"\ncut_after = "nowhere"', "cut_after"),
        ("[[case]]", "[[cases]]", "case"),
        ("[[case]]", "[[case", "f.toml"),
    ],
)
def test_a_malformed_case_is_refused(old: str, new: str, told: str) -> None:
    """The message names the file and what is wrong."""
    with pytest.raises(CaseError, match=r"f\.toml") as caught:
        parse_cases(SIMPLE.replace(old, new), TOOLS, file="f.toml")
    assert told in str(caught.value)
