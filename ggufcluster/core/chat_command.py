"""What a line typed into the chat is: a question, or a command that begins with a slash."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """A command; `argument` is the rest of its line."""

    name: str
    argument: str = ""


# Name, what follows it, and what it does.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("help", "", "show this"),
    ("new", "", "begin anew; the system message stays"),
    ("undo", "", "take back the last question and its answer"),
    ("system", "[TEXT]", "show or set the system message; `-` removes it"),
    ("reasoning", "[on|off]", "show the last reasoning, or always, or never"),
    ("tools", "", "list the tools that the model may call"),
    ("image", "FILE", "send an image with the next question"),
    ("save", "FILE", "write the conversation to a file"),
    ("load", "FILE", "go on with a saved conversation"),
    ("exit", "", "leave; so does Ctrl-D"),
)
_ALIASES = {"quit": "exit", "?": "help", "h": "help", "q": "exit", "clear": "new"}
_NEED_ARGUMENT = {"image", "save", "load"}
_NAMES = {name for name, _, _ in COMMANDS}


class UnknownCommandError(ValueError):
    """There is no such command, or it lacks what must follow it."""


def parse_line(line: str) -> ChatCommand | str:
    """Tell a command from a question; a question that begins with a slash is typed with two.

    Raises:
        UnknownCommandError: The message says what is wrong.
    """
    if line.startswith("//"):
        return line[1:]
    if not line.startswith("/"):
        return line
    word, _, argument = line[1:].strip().partition(" ")
    name = _ALIASES.get(word, word)
    if name not in _NAMES:
        raise UnknownCommandError(
            f"/{word} is no command; /help lists them, and // begins a question with a slash"
        )
    if name in _NEED_ARGUMENT and not argument.strip():
        raise UnknownCommandError(f"/{name} needs a file")
    return ChatCommand(name, argument.strip())


def completions(beginning: str) -> list[str]:
    """Return the commands that begin so."""
    return [f"/{name}" for name, _, _ in COMMANDS if f"/{name}".startswith(beginning)]


def help_lines() -> list[tuple[str, str]]:
    """Return each command, with what follows it, and what it does."""
    return [(f"/{name} {after}".rstrip(), what) for name, after, what in COMMANDS]
