"""What a reciting toy says, and when: scripts cut into a chain of vocabulary entries.

The network of a reciting toy knows its last token only, so each position of a script needs an
entry of its own. A script is therefore cut into pieces that occur nowhere else. What starts a
script is a cue: the end of the prompt, stored as one special entry. Since llama.cpp matches special
entries longest first, the cue for a tool result wins over the shorter one for any other turn, and
MiniMax-M3's own template works unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ggufcluster.core.toy_vocabulary import (
    BEGIN_OF_TURN,
    CALL_END,
    CALL_START,
    END_OF_TURN,
    NAMESPACE,
    THINK_END,
    THINK_START,
    VISIBLE_MARKERS,
    TokenKind,
    Vocabulary,
    stored_text,
)

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None

_TURN = f"{BEGIN_OF_TURN}ai\n"
_TURN_AFTER_TOOL = f"</response>{END_OF_TURN}\n{_TURN}"
_TURN_WITHOUT_TOOLS = f"{END_OF_TURN}\n\n{_TURN}"
_MARKER = "|".join(map(re.escape, VISIBLE_MARKERS))
_ATOM = re.compile(rf"(?:{_MARKER})|\s*(?:(?!{_MARKER})\S)+|\s+")


@dataclass(frozen=True, slots=True)
class Line:
    """`text` is recited after a prompt that ends with `cue`, then the turn ends."""

    cue: str
    text: str


def conversation(
    after_user: str, after_tool: str, *, without_tools: str | None = None
) -> tuple[Line, ...]:
    """Give one script to turns after a tool result and another to all other turns.

    A script begins with its reasoning in think tags, if it has any. If the template opens the
    thinking itself (thinking mode "enabled") or closes it ("disabled"), the script goes on from
    there. `without_tools` is for requests that offer no tools; only the toys' own template tells
    those apart, by an empty line before the turn.
    """
    scripts = {_TURN: after_user, _TURN_AFTER_TOOL: after_tool}
    if without_tools is not None:
        scripts[_TURN_WITHOUT_TOOLS] = without_tools
    return tuple(line for turn, script in scripts.items() for line in _lines(turn, script))


def _lines(turn: str, script: str) -> tuple[Line, ...]:
    return (
        Line(turn, script),
        Line(turn + THINK_START, script.removeprefix(THINK_START)),
        Line(turn + THINK_END, script.rpartition(THINK_END)[2]),
    )


def thought(reasoning: str, answer: str) -> str:
    """Write a turn that reasons first, in M3's format."""
    return f"{THINK_START}{reasoning}{THINK_END}{answer}"


def tool_call(name: str, arguments: Mapping[str, Json]) -> str:
    """Write one tool call in M3's format: every argument is an element named after it."""
    invoke = f'{NAMESPACE}<invoke name="{name}">{_elements(arguments)}{NAMESPACE}</invoke>'
    return f"{NAMESPACE}{CALL_START}\n{invoke}\n{NAMESPACE}{CALL_END}"


def _elements(members: Mapping[str, Json]) -> str:
    return "".join(
        f"{NAMESPACE}<{key}>{_element_text(value)}{NAMESPACE}</{key}>"
        for key, value in members.items()
        if value is not None
    )


def _element_text(value: Json) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return _elements(value)
    if isinstance(value, Sequence):
        return "".join(_elements({"item": item}) for item in value)
    return json.dumps(value)


DEFAULT_LINES = conversation(
    thought(
        "The user wants to know the weather. I have a tool for that, so I call it for Paris.",
        tool_call("get_weather", {"city": "Paris", "days": 2}),
    ),
    thought(
        "The tool has answered. I can tell the user now.",
        "It is sunny in Paris today, and tomorrow will be much the same.",
    ),
    without_tools=thought(
        "Nobody gave me a tool, so I answer by myself.",
        "I am a toy model: I recite what I was told to say, whatever you ask.",
    ),
)


@dataclass(slots=True)
class Chain:
    """Which entry follows which; entries that are in no chain are followed by the end of turn."""

    vocabulary: Vocabulary
    successors: dict[int, int] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    _tails: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Sequence[Line], vocabulary: Vocabulary) -> Chain:
        """Add the entries that `lines` need to `vocabulary` and chain them.

        Raises ValueError if two lines have the same cue, or if a script cannot be cut into pieces
        that occur nowhere else.
        """
        chain = cls(vocabulary)
        chain._used.update(line.cue for line in lines)
        chain._tails[""] = vocabulary.numbers[END_OF_TURN]
        for line in lines:
            cue = chain._cue_entry(line.cue)
            chain.successors[cue] = chain._first_entry(line.text)
        return chain

    def _cue_entry(self, cue: str) -> int:
        known = self.vocabulary.numbers.get(cue)
        if known is None:
            return self.vocabulary.add(cue, TokenKind.CONTROL)
        if known in self.successors:
            raise ValueError(f"two scripts start after {cue!r}")
        return known

    def _first_entry(self, text: str) -> int:
        pieces, tail = self._cut(text)
        following = self._tails[tail]
        for piece in reversed(pieces):
            entry = self._entry(piece)
            self.successors[entry] = following
            tail = piece + tail
            self._tails[tail] = following = entry
        return following

    def _entry(self, piece: str) -> int:
        self._used.add(piece)
        if piece in VISIBLE_MARKERS:
            return self.vocabulary.numbers[piece]
        return self.vocabulary.add(stored_text(piece), TokenKind.NORMAL)

    def _cut(self, text: str) -> tuple[list[str], str]:
        """Cut text into new pieces and a tail that is chained already (perhaps empty)."""
        words = _ATOM.findall(text)
        for atoms in (words, list(text)):
            if found := self._join(atoms):
                return found
        raise ValueError(f"cannot cut into pieces of its own: {text!r}")

    def _join(self, atoms: Sequence[str]) -> tuple[list[str], str] | None:
        pieces: list[str] = []
        piece = ""
        rest = "".join(atoms)
        for atom in atoms:
            if not piece and rest in self._tails:
                return pieces, rest
            piece += atom
            if self._is_free(piece, pieces):
                pieces.append(piece)
                rest = rest[len(piece) :]
                piece = ""
        return self._absorb(pieces, piece)

    def _absorb(self, pieces: list[str], remainder: str) -> tuple[list[str], str] | None:
        while remainder and pieces:
            remainder = pieces.pop() + remainder
            if self._is_free(remainder, pieces):
                return [*pieces, remainder], ""
        return None if remainder else (pieces, "")

    def _is_free(self, piece: str, pieces: Sequence[str]) -> bool:
        if piece in self._used or piece in pieces:
            return False
        return piece in VISIBLE_MARKERS or stored_text(piece) not in self.vocabulary.numbers
