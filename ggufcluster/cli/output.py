"""The one sink of the command line: data to stdout, progress and messages to stderr."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from contextlib import closing
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from ggufcluster.cli.explain import details, explain, notes
from ggufcluster.core.terminal_text import harmless
from ggufcluster.core.units import seconds_text, size_text
from ggufcluster.workflows import events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.progress import TaskID

    from ggufcluster.errors import GgufClusterError

Result = TypeVar("Result")

_WIDTH = 80
_PLAIN_SECONDS = 5.0
_GAP = 2
_NARROWEST = 4  # of a column; a terminal without room for that shows broken lines
_INDENT = 5
_RIGHT = frozenset(
    {
        *("memory", "rate", "layers", "round trip", "bits", "each"),
        *("weights", "cache", "compute", "other", "needs", "usable", "tokens/s"),
    }
)


class Output:
    """Where a command's words go.

    Args:
        as_json: Print results as JSON and progress as one JSON object a line on stderr.
        quiet: Print no progress and no notes.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self._as_json = as_json
        self._quiet = quiet
        # Wider lines wrap badly in logs and mails; a terminal may be narrower.
        self._out = Console(file=sys.stdout, highlight=False, soft_wrap=True, emoji=False)
        self._err = Console(file=sys.stderr, highlight=False, soft_wrap=True, emoji=False)

    def follow(self, workflow: events.Workflow[Result]) -> Result:
        """Run a workflow to its end, showing its events; return its result."""
        with closing(workflow), self._sink() as sink:
            try:
                while True:
                    sink.show(next(workflow))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except Exception:
                raise
            except BaseException as stop:
                # Ctrl-C comes while we print as well: the workflow then says all the same on the
                # way up what it keeps. One that raised it itself has ended, and passes it on.
                workflow.throw(stop)
                raise

    def data(self, value: dict[str, Any] | list[Any]) -> None:
        """Print a value as JSON."""
        text = json.dumps(value, indent=2, default=str)
        print(text, flush=True)  # noqa: T201 - this is the sink

    def line(self, text: str = "") -> None:
        """Print a line of the result."""
        self._out.print(Text(text))

    def raw(self, text: str) -> None:
        """Print text as it is, for others to read or to keep in a file."""
        sys.stdout.write(text if text.endswith("\n") or not text else f"{text}\n")
        sys.stdout.flush()

    def remark(self, text: str) -> None:
        """Print a line beside the result, on stderr."""
        if not self._quiet:
            self._err.print(Text(text, "dim"))

    def heading(self, text: str) -> None:
        """Print a line that introduces what follows."""
        self._out.print(Text(f"\n{text}", "bold"))

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table that fits 80 columns."""
        lines = _table_lines(columns, list(rows), min(_WIDTH, self._out.width))
        for number, line in enumerate(lines):
            self._out.print(Text(line, "" if number else "bold"))

    def paragraph(self, text: str, *, mark: str = "") -> None:
        """Print text wrapped between words, behind a mark in its first line."""
        room = max(_NARROWEST, min(_WIDTH, self._out.width) - cell_len(mark))
        for line in _wrapped(text, room):
            self.line(mark + line)
            mark = " " * len(mark)

    def pairs(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print names and values below each other, each value whole on its line."""
        found = list(rows)
        width = max(cell_len(name) for name, _ in found) + _GAP
        for name, value in found:
            self.line(name.ljust(width) + value)

    def error(self, error: GgufClusterError) -> int:
        """Print an error with what to do next; return its exit code."""
        code, hint = explain(error)
        if self._as_json:
            kind = type(error).__name__
            report = {"error": kind, "message": str(error), "next": hint, "exit_code": code}
            report["details"] = list(details(error))
            report["notes"] = list(notes(error))
            print(json.dumps(report), file=sys.stderr)  # noqa: T201 - this is the sink
            return code
        for line in details(error):
            self._err.print(Text(f"  {line}", "dim"))
        # It may quote a server, and what a terminal obeys is not for servers to send.
        _say(self._err, "error:", harmless(str(error)), style="bold red")
        for note in notes(error):
            _say(self._err, "  note:", note, style="bold")
        if hint:
            _say(self._err, "  next:", hint, style="bold")
        return code

    def _sink(self) -> _Sink:
        if self._as_json:
            return _JsonSink()
        if self._quiet:
            return _Sink()
        return _BarSink(self._err) if self._err.is_terminal else _PlainSink(self._err)


class _Sink:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def show(self, event: events.Event) -> None:
        """Show one event."""


class _JsonSink(_Sink):
    def show(self, event: events.Event) -> None:
        fields = {name: getattr(event, name) for name in type(event).__slots__}
        report = {"event": type(event).__name__.lower(), **fields}
        text = json.dumps(report, default=lambda unit: unit.value)
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the sink


class _PlainSink(_Sink):
    """Lines for logs and pipes; progress at most every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: dict[str, float] = {}
        self._began: dict[str, float] = {}

    def show(self, event: events.Event) -> None:
        match event:
            case events.Started():
                self._began[event.label] = time.monotonic()
                self._console.print(Text(f"{event.label} ..."))
            case events.Progress():
                if not event.within:  # a log wants the whole only
                    self._show_progress(event)
            case _:
                _show_line(self._console, event)

    def _show_progress(self, event: events.Progress) -> None:
        now = time.monotonic()
        began = self._began.setdefault(event.label, now)
        if now - self._last.get(event.label, began) < _PLAIN_SECONDS:
            return
        self._last[event.label] = now
        amount = _amount(event.done, event.total, event.unit)
        self._console.print(Text(f"  {event.label}: {amount}"))


class _BarSink(_Sink):
    """Bars with rate and time left on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, max_width=24)),
            BarColumn(bar_width=10),
            _AmountColumn(table_column=Column(no_wrap=True, justify="right")),
            _PaceColumn(table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._progress.stop()

    def show(self, event: events.Event) -> None:
        match event:
            case events.Started():
                self._task(event.label, total=None)
            case events.Progress():
                task = self._task(event.label, total=event.total)
                self._progress.update(
                    task, completed=event.done, total=event.total, unit=event.unit
                )
            case events.Finished():
                for label in self._within(event.label):
                    self._progress.remove_task(self._tasks.pop(label))
                _show_line(self._progress.console, event)
            case _:
                _show_line(self._progress.console, event)

    def _task(self, label: str, *, total: int | None) -> TaskID:
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(
                escape(label), total=total, unit=events.Unit.STEPS
            )
        return self._tasks[label]

    def _within(self, label: str) -> list[str]:
        """Return the step itself and the steps that began while it ran."""
        labels = list(self._tasks)
        return labels[labels.index(label) :] if label in labels else []


class _AmountColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = None if task.total is None else int(task.total)
        if total is None and not task.completed:
            return Text("")
        return Text(_amount(int(task.completed), total, task.fields["unit"]))


class _PaceColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        left = task.time_remaining
        words = [f"{_pace(task.speed, task.fields['unit'])}"] if task.speed else []
        words += [f"{seconds_text(left)} left"] if left else [seconds_text(task.elapsed or 0)]
        return Text("  ".join(words), style="dim")


def _show_line(console: Console, event: events.Event) -> None:
    match event:
        case events.Finished():
            detail = f": {event.detail}" if event.detail else ""
            _say(console, "done", f"{event.label}{detail}", style="green")
        case events.Note():
            _say(console, " " * (_INDENT - 1), event.text)
        case events.Warned():
            _say(console, "note", event.text, style="yellow")
        case _:
            pass


def _amount(done: int, total: int | None, unit: events.Unit) -> str:
    text = size_text if unit is events.Unit.BYTES else str
    return text(done) if total is None else f"{text(done)}/{text(total)}"


def _pace(speed: float, unit: events.Unit) -> str:
    return f"{size_text(speed)}/s" if unit is events.Unit.BYTES else f"{speed:.1f}/s"


def _say(console: Console, mark: str, text: str, *, style: str = "") -> None:
    """Print a message; a terminal gets it wrapped between words, so that none is cut."""
    if console.is_terminal:
        room = max(20, console.width - len(mark) - 1)
        text = f"\n{' ' * _INDENT}".join(_wrapped(text, room))
    console.print(Text.assemble((mark, style), " ", text))


def _wrapped(text: str, width: int, *, fold: bool = False) -> list[str]:
    lines = textwrap.wrap(text, width, break_long_words=fold, break_on_hyphens=False)
    return lines or [""]


def _table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[str]:
    """Lay out a table: the widest columns give way, their cells go on in further lines."""
    widths = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > width and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    for row in (columns, *rows):
        cells = (_wrapped(cell, room, fold=True) for cell, room in zip(row, widths, strict=True))
        for parts in zip_longest(*cells, fillvalue=""):
            yield _table_line(columns, parts, widths)


def _table_line(columns: Sequence[str], cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        room = " " * (width - cell_len(cell))
        padded.append(room + cell if column in _RIGHT else cell + room)
    return (" " * _GAP).join(padded).rstrip()
