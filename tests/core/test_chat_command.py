"""Lines that are typed into the chat."""

from __future__ import annotations

import pytest

from ggufcluster.core.chat_command import (
    COMMANDS,
    ChatCommand,
    UnknownCommandError,
    completions,
    help_lines,
    parse_line,
)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("hello", "hello"),
        ("a /help", "a /help"),
        ("//usr is a folder", "/usr is a folder"),
        ("/help", ChatCommand("help")),
        ("/?", ChatCommand("help")),
        ("/quit", ChatCommand("exit")),
        ("/save  my file.json ", ChatCommand("save", "my file.json")),
        ("/system Be\nshort.", ChatCommand("system", "Be\nshort.")),
    ],
)
def test_a_line_is_a_question_or_a_command(line: str, found: ChatCommand | str) -> None:
    """One slash begins a command, two a question with a slash."""
    assert parse_line(line) == found


@pytest.mark.parametrize("line", ["/nothing", "/", "/usr/bin", "/save", "/load  ", "/Help"])
def test_a_command_that_is_none_is_told(line: str) -> None:
    """An unknown command, or one that lacks its file, is not sent to the model."""
    with pytest.raises(UnknownCommandError):
        parse_line(line)


def test_help_names_every_command() -> None:
    """Each command has a line, and completes from its beginning."""
    assert [line.split()[0] for line, _ in help_lines()] == [f"/{name}" for name, _, _ in COMMANDS]
    assert completions("/s") == ["/system", "/save"]
    assert completions("x") == []
