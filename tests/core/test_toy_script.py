"""Scripts cut into chains."""

from __future__ import annotations

import pytest

from ggufcluster.core.toy_script import (
    DEFAULT_LINES,
    Chain,
    Line,
    conversation,
    thought,
    tool_call,
)
from ggufcluster.core.toy_vocabulary import BYTE_LETTERS, END_OF_TURN, Vocabulary

LETTER_BYTES = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}
HARD_SCRIPTS = {
    "empty": "",
    "two letters": "xx",
    "one word": "yes",
    "same word again": "no no no no no no no",
    "same letter again": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "spaces": "   two   three   two   three   ",
    "lines": "a\nb\n\na\nb\n",
    "not English": "Grüße, 世界! Grüße, 世界! 🙂🙂🙂",
    "markers only": "<mm:think></mm:think><mm:think></mm:think>",
    "repeated call": tool_call("f", {"a": "x", "b": "x"}) * 2,
    "looks like a stored space": "Ġ Ġ ĠĠ",
}


def recited(lines: tuple[Line, ...], cue: str) -> str:
    """Follow the chain from a cue to the end of the turn."""
    vocabulary = Vocabulary.base()
    chain = Chain.of(lines, vocabulary)
    said = []
    entry = chain.successors[vocabulary.numbers[cue]]
    while entry != vocabulary.numbers[END_OF_TURN]:
        said.append(vocabulary.entries[entry])
        assert len(said) <= len(vocabulary), "the chain never ends"
        entry = chain.successors[entry]
    return bytes(LETTER_BYTES[letter] for letter in "".join(said)).decode()


def test_every_default_line_is_recited() -> None:
    """Each cue of the default scripts leads through exactly its text."""
    for line in DEFAULT_LINES:
        assert recited(DEFAULT_LINES, line.cue) == line.text


@pytest.mark.parametrize("text", HARD_SCRIPTS.values(), ids=HARD_SCRIPTS.keys())
def test_repetitive_scripts_are_recited(text: str) -> None:
    """Repeated words, letters and markers do not confuse the chain."""
    assert recited((Line("cue", text),), "cue") == text


def test_a_script_of_one_letter_is_refused() -> None:
    """A script that cannot have an entry of its own is an error that shows the script."""
    with pytest.raises(ValueError, match="cannot cut into pieces of its own: 'x'"):
        recited((Line("cue", "x"),), "cue")


def test_scripts_may_share_words_beginnings_and_ends() -> None:
    """Two scripts that differ in one word are kept apart, and equal scripts are no conflict."""
    lines = (
        Line("one", "It is sunny in Paris today."),
        Line("two", "It is rainy in Paris today."),
        Line("three", "It is sunny in Paris today."),
        Line("four", "in Paris today."),
        Line("five", "Paris"),
    )
    for line in lines:
        assert recited(lines, line.cue) == line.text


def test_two_scripts_for_one_cue_are_refused() -> None:
    """A cue can start one script only."""
    with pytest.raises(ValueError, match="two scripts start after 'cue'"):
        recited((Line("cue", "first one"), Line("cue", "second one")), "cue")


def test_conversation_goes_on_from_the_think_tag_that_the_prompt_wrote() -> None:
    """When the prompt opens or closes the thinking, the script does not do it again."""
    lines = conversation(thought("why", "what"), "no reasoning here")
    by_cue = {line.cue: line.text for line in lines}
    assert by_cue == {
        "]~b]ai\n": "<mm:think>why</mm:think>what",
        "]~b]ai\n<mm:think>": "why</mm:think>what",
        "]~b]ai\n</mm:think>": "what",
        "</response>[e~[\n]~b]ai\n": "no reasoning here",
        "</response>[e~[\n]~b]ai\n<mm:think>": "no reasoning here",
        "</response>[e~[\n]~b]ai\n</mm:think>": "no reasoning here",
    }


def test_conversation_can_tell_requests_without_tools_apart() -> None:
    """A script for requests without tools starts after the empty line of the toys' template."""
    lines = conversation("call", "result", without_tools="plain words")
    assert recited(lines, "[e~[\n\n]~b]ai\n") == "plain words"
    assert recited(lines, "]~b]ai\n") == "call"


def test_tool_call_nests_arguments_as_elements() -> None:
    """Objects and arrays become nested elements, scalars JSON, and None is left out."""
    ns = "]<]minimax[>["
    call = tool_call("f", {"on": True, "n": 3, "gone": None, "list": ["a", {"k": 1.5}]})
    assert call == (
        f'{ns}<tool_call>\n{ns}<invoke name="f">'
        f"{ns}<on>true{ns}</on>{ns}<n>3{ns}</n>"
        f"{ns}<list>{ns}<item>a{ns}</item>{ns}<item>{ns}<k>1.5{ns}</k>{ns}</item>{ns}</list>"
        f"{ns}</invoke>\n{ns}</tool_call>"
    )
