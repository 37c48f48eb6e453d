"""Turns of a model that calls tools nobody thought of, drawn once and kept.

`python -m tests.engine.drawn_turns 150` draws others, into `tests/data/toolcalls/drawn.json`. They
are kept because Hypothesis draws by what is installed and imported, and a test must have the same
ones everywhere.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.engine.tool_schemas import NAMESPACE, TEXTS, TOOL_NAMES, Tool, tools

WHITE_SPACE = " \t\r\n"
DRAWN = Path(__file__).parents[1] / "data" / "toolcalls" / "drawn.json"
_MARKS = (NAMESPACE + "<", "mm:think", "tool_call>")


def _plain(text: str) -> bool:
    """Tell whether a text holds no markup, nor may become some with what follows it."""
    return not any(mark in text for mark in _MARKS) and not text.endswith(("]", "[", "<", ">"))


WORDS = st.one_of(st.sampled_from(["", "", "Hi.\n", " \n", "\n\nSo.\n"]), TEXTS.filter(_plain))


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the model: blocks of calls, each with the text before it.

    Attributes:
        offered: The tools, in OpenAI's form.
        blocks: Text and calls; a call is a tool's name, its arguments, and what is to be read.
        after: The text behind the last block.
        thought: The thinking before all of it.
        cuts: Where a stream of it is cut into pieces.
        choice: The value of ``tool_choice``.
    """

    offered: tuple[dict[str, Any], ...]
    blocks: tuple[tuple[str, tuple[tuple[str, Any, Any], ...]], ...]
    after: str
    thought: str
    cuts: tuple[int, ...]
    choice: str

    @property
    def calls(self) -> list[tuple[str, Any, Any]]:
        """All calls in order."""
        return [call for _, calls in self.blocks for call in calls]

    @property
    def content(self) -> str:
        """The text that a client must get."""
        words = [*(before for before, _ in self.blocks), self.after]
        return "".join(text for text in words if text.strip(WHITE_SPACE))


def kept() -> list[Turn]:
    """Read the turns that were drawn."""
    return [_turn(**found) for found in json.loads(DRAWN.read_text())]


def _turn(*, offered: Any, blocks: Any, cuts: Any, **rest: str) -> Turn:
    calls = tuple((text, tuple(map(tuple, found))) for text, found in blocks)
    return Turn(tuple(offered), calls, cuts=tuple(cuts), **rest)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """Any turn with calls."""
    name = draw(TOOL_NAMES)
    names = [name, name + draw(st.sampled_from(["x", "-a", "_1"]))][: draw(st.integers(1, 2))]
    offered = tuple(draw(tools(name)) for name in names)
    return Turn(
        tuple(tool.offered for tool in offered),
        tuple(
            (draw(WORDS), tuple(draw(_calls(offered)) for _ in range(draw(st.integers(1, 3)))))
            for _ in range(draw(st.integers(1, 2)))
        ),
        after=draw(WORDS),
        thought=draw(WORDS),
        cuts=tuple(sorted(draw(st.sets(st.integers(0, 600), max_size=20)))),
        choice=draw(st.sampled_from(["auto", "required"])),
    )


@st.composite
def _calls(draw: st.DrawFn, offered: tuple[Tool, ...]) -> tuple[str, Any, Any]:
    tool = draw(st.sampled_from(offered))
    return (tool.name, *draw(tool.arguments))


def main(count: int) -> None:
    """Draw so many turns and keep them."""
    found: list[Turn] = []

    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(turns())
    def draw(turn: Turn) -> None:
        found.append(turn)

    draw()
    lines = [json.dumps(asdict(turn), ensure_ascii=True) for turn in found]
    DRAWN.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
