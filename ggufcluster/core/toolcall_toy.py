"""A reciting toy for a whole corpus: the end of the prompt says which case it recites.

The user's message ends with the case's name. With the template's own end of a prompt behind it, it
is one special entry of the vocabulary and so starts that case's script; one server serves them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.core.toolcall_case import written_text
from ggufcluster.core.toy import recite_model
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.core.toy_script import Chain, Line
from ggufcluster.core.toy_vocabulary import (
    BEGIN_OF_TURN,
    END_OF_TURN,
    THINK_END,
    THINK_START,
    Vocabulary,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.core.gguf_write import GgufModel
    from ggufcluster.core.template_style import Style
    from ggufcluster.core.toolcall_case import Case

# A corpus has thousands of entries; their codes need room to differ.
SHAPE = ToyShape(
    layers=2,
    dense_layers=1,
    width=128,
    key_value_heads=1,
    queries_per_group=1,
    head_size=32,
    rotary_size=16,
    experts=2,
    experts_used=1,
    context=16384,
)
UNWANTED_THOUGHT = "Thoughts that nobody asked for."
_PROMPT_END = f"{END_OF_TURN}\n{BEGIN_OF_TURN}ai\n"


def question(case: Case) -> str:
    """Return the user's message of a case."""
    return f"Case {case.name}."


def marked_result(case: Case, text: str) -> str:
    """Return the text of a case's last tool result."""
    return f"{text} (case {case.name})"


def corpus_model(template: str, cases: Sequence[Case], style: Style) -> GgufModel:
    """Build the toy that recites every case in a style."""
    return recite_model(template, SHAPE, lines=corpus_lines(cases, style))


def corpus_lines(cases: Sequence[Case], style: Style) -> tuple[Line, ...]:
    """Return what the toy says after which end of a prompt."""
    return tuple(line for case in cases for line in _lines(case, style))


def token_limits(cases: Sequence[Case], style: Style) -> dict[str, int]:
    """Return, for each case that is cut, after how many of the toy's tokens."""
    chain = Chain.of(corpus_lines(cases, style), Vocabulary.base())
    return {
        case.name: _tokens_until(chain, question(case) + _PROMPT_END, case.cut_after)
        for case in cases
        if case.cut_after is not None
    }


def _lines(case: Case, style: Style) -> list[Line]:
    cue = question(case) + _PROMPT_END
    text = written_text(case, style)
    spoken = text
    if case.thinking == "disabled":
        # Said only if the request to leave out the thinking went unheard.
        spoken = f"{THINK_START}{UNWANTED_THOUGHT}{THINK_END}{text}"
    lines = [
        Line(cue, spoken),
        Line(cue + THINK_START, text.removeprefix(THINK_START)),
        Line(cue + THINK_END, text),
    ]
    if case.results:
        end = marked_result(case, "").lstrip() + f"</response>{_PROMPT_END}"
        lines.append(Line(end, case.answers))
    return lines


def _tokens_until(chain: Chain, cue: str, goal: str) -> int:
    entry = chain.vocabulary.numbers[cue]
    wanted = "".join(goal.split())
    said, count = "", 0
    while wanted not in "".join(said.split()):
        entry = chain.successors[entry]
        said += _plain(chain.vocabulary.entries[entry])
        count += 1
    return count


def _plain(stored: str) -> str:
    # Letters and digits are stored as themselves; the rest does not matter for finding the place.
    return "".join(
        letter if letter.isascii() and letter.isprintable() else " " for letter in stored
    )
