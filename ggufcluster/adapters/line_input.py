"""Lines that a person types, with editing and a history that only they can read."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

_MOST_LINES = 2000


class LineInput:
    """Reads lines from the terminal, or from a pipe without a word.

    Args:
        history: File of past lines, made when the first line is kept.
        completions: Returns what a word can become.
    """

    def __init__(self, history: Path, completions: Callable[[str], list[str]]) -> None:
        self._path = history
        self._readline = _readline() if _is_terminal() else None
        if self._readline is not None:
            self._prepare(self._readline, completions)

    def read(self, prompt: str, *, keep: bool = True) -> str:
        """Return one line without its end; raises EOFError at the end of input.

        A line that ends with a backslash goes on in the next one.

        Args:
            prompt: Shown before it, on a terminal only.
            keep: Whether the line belongs into the history.
        """
        lines = [self._line(prompt)]
        while keep and lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._line("... "))
        text = "\n".join(lines)
        if keep and text.strip() and self._readline is not None:
            self._keep(self._readline, text)
        return text

    def _line(self, prompt: str) -> str:
        if self._readline is not None:
            return input(prompt)
        if sys.stdin.isatty() and sys.stderr.isatty():
            sys.stderr.write(prompt)
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")

    def _prepare(self, readline: ModuleType, completions: Callable[[str], list[str]]) -> None:
        def complete(text: str, state: int) -> str | None:
            return dict(enumerate(completions(text) if text else [])).get(state)

        # Every line is kept by `_keep`, so that answers to questions are not.
        readline.set_auto_history(False)
        readline.set_history_length(_MOST_LINES)
        readline.set_completer_delims(" ")
        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")
        with contextlib.suppress(OSError):
            readline.read_history_file(self._path)

    def _keep(self, readline: ModuleType, text: str) -> None:
        # One line each: the file has no way to tell a line's end from an entry's.
        readline.add_history(" ".join(text.split("\n")))
        with contextlib.suppress(OSError):  # a chat without history is better than none
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(descriptor, 0o600)
            os.close(descriptor)
            readline.append_history_file(1, self._path)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _readline() -> ModuleType | None:
    try:
        import readline  # noqa: PLC0415 - not every Python has it
    except ImportError:
        return None
    return readline
