"""What a chat looks like: on a terminal, in plain text, and as JSON for scripts.

The answer's text goes to stdout, all else to stderr, so that a pipe gets the answer alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from rich.cells import chop_cells
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ggufcluster.cli.output import Output
from ggufcluster.core.terminal_text import harmless, one_line
from ggufcluster.core.units import seconds_text
from ggufcluster.workflows import chat as events

if TYPE_CHECKING:
    from ggufcluster.core.chat_stream import Pace

_TAIL_ROWS = 6
_PLAIN_SECONDS = 5.0
_CALL_LETTERS = 400
_RESULT_LETTERS = 160
_WHY = {
    "length": "the answer was cut by the token limit or the end of the context",
    "content_filter": "the server held back the rest",
}


def view_of(*, as_json: bool, plain: bool, quiet: bool, show_reasoning: bool) -> View:
    """Return the view that was asked for; terminals that cannot do more get plain text."""
    if as_json:
        return JsonView(Output(as_json=True))
    plain = plain or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return TextView(plain=plain, quiet=quiet, show_reasoning=show_reasoning)


class View(Protocol):
    """Shows a chat.

    Attributes:
        reasoning: The last reasoning.
        show_reasoning: Whether reasoning is shown whole.
        quiet: Whether calls are left out.
    """

    quiet: bool
    reasoning: str
    show_reasoning: bool

    def begin(self) -> None:
        """A question was put."""

    def show(self, event: events.ChatEvent) -> None:
        """Show one event."""

    def remark(self, text: str) -> None:
        """Say something beside the answer that was asked for."""

    def end(self) -> None:
        """Somebody else writes now, or the turn is over, however it ended."""


class JsonView:
    """One JSON object a line on stdout for each event."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self.quiet = False
        self.reasoning = ""
        self.show_reasoning = True

    def show(self, event: events.ChatEvent) -> None:
        """Show one event."""
        if isinstance(event, events.Answered):
            self.reasoning = event.reasoning
        fields = {"event": type(event).__name__.lower(), **asdict(event)}
        self._output.raw(json.dumps(fields))

    def begin(self) -> None:
        """A question was put."""

    def end(self) -> None:
        """The turn is over, however it ended."""

    def remark(self, text: str) -> None:
        """Say something beside the answer."""
        self._output.raw(json.dumps({"event": "remarked", "text": text}))


class TextView:
    """Text for people.

    Args:
        plain: No colours and no moving parts.
        quiet: The answer alone.
        show_reasoning: Show reasoning whole instead of folding it to one line.

    Attributes:
        quiet: As given.
        reasoning: The last reasoning.
    """

    def __init__(self, *, plain: bool, quiet: bool, show_reasoning: bool) -> None:
        self._err = Console(file=sys.stderr, highlight=False, soft_wrap=True, emoji=False)
        self._plain = plain or not self._err.is_terminal
        self._told = 0.0
        self.quiet = quiet
        self._live: Live | None = None
        self._began = 0.0
        self._thinking = False
        self._folded = ""
        self._open_line = False
        self.show_reasoning = show_reasoning
        self.reasoning = ""

    def begin(self) -> None:
        """A question was put: something moves until the first word."""
        self.reasoning = self._folded = ""
        self._thinking = False
        self._wait("waiting for the server")

    def end(self) -> None:
        """The turn is over, however it ended: leave a whole line and nothing that moves."""
        self._fold()
        self._still()
        self._close_line()

    def remark(self, text: str) -> None:
        """Print something beside the answer, also if quiet: it was asked for."""
        self._still()
        self._close_line()
        self._line(text, "dim")

    def show(self, event: events.ChatEvent) -> None:
        """Show one event."""
        match event:
            case events.Reading():
                self._show_reading(event)
            case events.Thought():
                self._think(event.text)
            case events.Said():
                self._say(event.text)
            case events.Called():
                self.end()
                self._note(f"calls {event.name}", event.arguments, "cyan", _CALL_LETTERS)
            case events.Returned():
                self._show_result(event)
            case events.Answered():
                self._finish(event)
            case events.Stopped():
                self._show_stop(event)
            case events.Remarked():
                self.end()
                self._line(f"note {event.text}", "yellow")

    def _show_reading(self, event: events.Reading) -> None:
        if self._thinking or event.done <= 0 or event.done >= event.total:
            return
        passed = time.monotonic() - self._began
        left = passed * (event.total - event.done) / event.done
        rate = event.done / passed if passed else 0
        text = (
            f"reading the prompt: {event.done:,}/{event.total:,} tokens,"
            f" {rate:,.0f} tokens/s, {seconds_text(left)} left"
        )
        if not self._plain:
            self._wait(text, anew=False)
        elif not self.quiet and passed - self._told >= _PLAIN_SECONDS:
            self._told = passed
            self._line(text, "")

    def _show_result(self, event: events.Returned) -> None:
        mark = "failed" if event.failed else "gave"
        self._note(
            f"{event.name} {mark}", event.text, "red" if event.failed else "green", _RESULT_LETTERS
        )
        self._wait("waiting for the server")

    def _show_stop(self, event: events.Stopped) -> None:
        self.end()
        what = "the question is taken back" if event.withdrawn else "what came is kept"
        self._line(f"stopped; {what}", "yellow")
        self._show_pace(event.pace)

    def _finish(self, event: events.Answered) -> None:
        self.end()
        if why := _WHY.get(event.finish):
            self._line(f"note {why}", "yellow")
        if not event.calls and not event.content.strip():
            self._line("note the answer is empty", "yellow")
        if not event.calls:
            self._show_pace(event.pace)

    def _show_pace(self, pace: Pace) -> None:
        if (line := pace.line()) and not self.quiet:
            self._line(line, "dim")

    def _think(self, text: str) -> None:
        if not self._thinking:
            self._still()
            self._close_line()
            self._thinking, self._folded, self._began = True, "", time.monotonic()
            self.reasoning += "\n\n" if self.reasoning else ""
        self._folded += text
        self.reasoning += text
        if self.show_reasoning:
            self._write_reasoning(text)
        else:
            self._wait("thinking", self._tail(), anew=False)

    def _write_reasoning(self, text: str) -> None:
        shown = Text(harmless(text), "" if self._plain else "dim")
        self._err.print(shown, end="")
        self._open_line = not text.endswith("\n")

    def _tail(self) -> str:
        """Return the end of the reasoning, as much as stays on the screen."""
        width = max(20, self._err.width - 1)
        lines = harmless(self._folded[-_TAIL_ROWS * width :]).expandtabs().splitlines()
        rows = [row for line in lines for row in chop_cells(line, width) or [""]]
        return "\n".join(rows[-_TAIL_ROWS:])

    def _fold(self) -> None:
        if not self._thinking:
            return
        self._still()
        self._close_line()
        self._thinking = False
        if not self.show_reasoning and not self.quiet:
            passed = seconds_text(time.monotonic() - self._began)
            count = len(self._folded.split())
            words = "1 word" if count == 1 else f"{count:,} words"
            self._line(f"thought for {passed}, {words} (/reasoning shows all)", "dim")

    def _say(self, text: str) -> None:
        self._fold()
        self._still()
        # Files get the model's own bytes; only a terminal can be harmed by them.
        sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
        self._open_line = not text.endswith("\n")

    def _close_line(self) -> None:
        if self._open_line:
            self._open_line = False
            stream = sys.stderr if self._thinking else sys.stdout
            stream.write("\n")
            stream.flush()

    def _note(self, head: str, text: str, style: str, most: int) -> None:
        self._still()
        if not self.quiet:
            mark = Text(harmless(head), "" if self._plain else style)
            self._err.print(Text.assemble(mark, " ", one_line(text, most)))

    def _line(self, text: str, style: str) -> None:
        self._err.print(Text(harmless(text), "" if self._plain else style))

    def _wait(self, text: str, tail: str = "", *, anew: bool = True) -> None:
        if anew:
            self._began, self._told = time.monotonic(), 0.0
        if self._plain or self.quiet:
            return
        shown = _Waiting(text, tail, self._began)
        if self._live is None:
            self._live = Live(shown, console=self._err, transient=True, refresh_per_second=8)
            self._live.start()
        else:
            self._live.update(shown)

    def _still(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class _Waiting:
    """A line that says for how long, with the end of a text below it."""

    def __init__(self, text: str, tail: str, began: float) -> None:
        self._text = text
        self._tail = tail
        self._began = began

    def __rich__(self) -> Text:
        passed = seconds_text(time.monotonic() - self._began)
        below = f"\n{self._tail}" if self._tail else ""
        return Text(f"{self._text}, {passed}{below}", "dim", no_wrap=True, overflow="crop")
