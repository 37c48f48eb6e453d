"""The reciting toy that knows a corpus by the end of the prompt."""

from __future__ import annotations

import pytest

from ggufcluster.core.template_style import Style
from ggufcluster.core.toolcall_case import Case
from ggufcluster.core.toolcall_toy import (
    UNWANTED_THOUGHT,
    corpus_lines,
    corpus_model,
    marked_result,
    question,
    token_limits,
)
from ggufcluster.core.toy_script import Chain
from ggufcluster.core.toy_vocabulary import THINK_END, THINK_START, Vocabulary, stored_text


def case(name: str = "one", **fields: str | tuple[str, ...]) -> Case:
    """A case without tools."""
    return Case(**({"name": name, "about": "x", "writes": "a b c"} | fields))  # type: ignore[arg-type]


def texts(*cases: Case) -> dict[str, str]:
    """What is said after which end of a prompt."""
    return {line.cue: line.text for line in corpus_lines(cases, Style.NATIVE)}


def test_the_prompt_says_which_case_it_is() -> None:
    """Each case has a cue of its own, which begins with its question."""
    said = texts(case("one"), case("two", writes="d"))
    assert len(said) == 6
    assert {text for cue, text in said.items() if cue.startswith(question(case("two")))} == {"d"}


def test_an_opened_thought_goes_on() -> None:
    """Where the template has opened the thinking, the script does not open it again."""
    said = texts(case(writes=f"{THINK_START}hm{THINK_END}x"))
    opened = next(text for cue, text in said.items() if cue.endswith(THINK_START))
    assert opened == f"hm{THINK_END}x"


def test_a_refusal_to_think_that_goes_unheard_shows() -> None:
    """Asked not to think, the toy does so only where the prompt says so."""
    said = texts(case(thinking="disabled"))
    closed = next(text for cue, text in said.items() if cue.endswith(THINK_END))
    unheard = next(text for cue, text in said.items() if cue.endswith("ai\n"))
    assert closed == "a b c"
    assert UNWANTED_THOUGHT in unheard


def test_results_start_the_answer() -> None:
    """The last result ends with the case's name, which is the cue of the answer."""
    looped = case(results=("r",), answers="done", answer="done")
    end = marked_result(looped, "r").removeprefix("r ")
    assert [text for cue, text in texts(looped).items() if cue.startswith(end)] == ["done"]


def test_the_limit_strikes_behind_the_words_that_are_named() -> None:
    """Reciting as many entries as the limit allows says the words, one entry fewer does not."""
    cut = case(writes="alpha beta gamma delta", cut_after="beta")
    limit = token_limits([cut], Style.NATIVE)["one"]
    chain = Chain.of(corpus_lines([cut], Style.NATIVE), Vocabulary.base())
    cue = next(line.cue for line in corpus_lines([cut], Style.NATIVE) if line.cue.endswith("ai\n"))
    entry, said = chain.vocabulary.numbers[cue], []
    for _ in range(limit):
        entry = chain.successors[entry]
        said.append(chain.vocabulary.entries[entry])
    assert stored_text("beta") in "".join(said)
    assert stored_text("beta") not in "".join(said[:-1])
    assert stored_text("delta") not in "".join(said)


def test_two_cases_of_one_name_are_refused() -> None:
    """A cue can start one script only."""
    with pytest.raises(ValueError, match="two scripts"):
        corpus_model("", [case(), case()], Style.NATIVE)
