"""The sink of the command line."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from ggufcluster import errors
from ggufcluster.cli import output as module
from ggufcluster.cli.output import Output
from ggufcluster.workflows.events import (
    Event,
    Finished,
    Note,
    Progress,
    Started,
    Unit,
    Warned,
    Workflow,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

AWKWARD = r"[bold]x[/bold] [/nothing] :key: \[a] C:\ [red] \\"[:-1]
EVENTS: Sequence[Event] = (
    Started("Loading [M]"),
    Progress("to a", 512, 2048, Unit.BYTES),
    Progress("to a", 3, None),
    Note("a note"),
    Warned("a warning"),
    Finished("Loading [M]", "in 3 s"),
)


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def work(*steps: Event) -> Workflow[str]:
    """Yield these events and return a result."""
    yield from steps or EVENTS
    return "result"


def broken() -> Workflow[None]:
    """Begin and fail."""
    yield Started("Trying")
    raise errors.HeadError("no luck")


def test_following_gives_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    """The result comes back, progress is on stderr, and stdout stays empty for data."""
    assert Output().follow(work()) == "result"
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "Loading [M] ...",
        "     a note",
        "note a warning",
        "done Loading [M]: in 3 s",
    ]


def test_progress_in_a_log_is_rare(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal a long step is shown every five seconds, not at every event."""
    clock = iter([0.0, 1.0, 4.0, 6.0, 7.0, 12.0])
    monkeypatch.setattr("ggufcluster.cli.output.time.monotonic", lambda: next(clock))
    steps = [Progress("to a", n << 20, 5 << 20, Unit.BYTES) for n in range(1, 6)]
    Output().follow(work(Started("to a"), *steps))
    assert capsys.readouterr().err.splitlines() == [
        "to a ...",
        "  to a: 3.00 MiB/5.00 MiB",
        "  to a: 5.00 MiB/5.00 MiB",
    ]


def test_a_log_shows_the_whole_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shares of a step have bars of their own on a terminal, but no lines in a log."""
    monkeypatch.setattr(module, "_PLAIN_SECONDS", 0.0)
    whole, share = "download", "shard 1 of 2"
    steps = (Progress(share, 1, 2, Unit.BYTES, whole), Progress(whole, 1, 4, Unit.BYTES))
    Output().follow(work(*steps))
    shown = capsys.readouterr().err
    assert whole in shown
    assert share not in shown


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither progress nor notes are shown."""
    assert Output(quiet=True).follow(work()) == "result"
    assert capsys.readouterr() == ("", "")


def test_json_shows_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Every event is a JSON object with its kind and its fields, on stderr."""
    Output(as_json=True).follow(work())
    out, err = capsys.readouterr()
    assert out == ""
    found = [json.loads(line) for line in err.splitlines()]
    assert [event["event"] for event in found] == [
        *("started", "progress", "progress", "note", "warned", "finished")
    ]
    assert found[1] == {
        "event": "progress",
        "label": "to a",
        "done": 512,
        "total": 2048,
        "unit": "bytes",
        "within": "",
    }


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a finished step becomes a line; its bar and those within it are gone."""
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=80, highlight=False)
    with module._BarSink(console) as sink:
        sink.show(Started("All of it"))
        for event in EVENTS:
            sink.show(event)
        assert sink._tasks.keys() == {"All of it"}
    assert "Loading [M]: in 3 s" in screen.getvalue()


def test_a_terminal_gets_whole_words() -> None:
    """Long messages go on in further lines between words; a long path stays in one piece."""
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=40, soft_wrap=True, color_system=None)
    path = "/models/" + "x" * 60
    module._show_line(console, Warned(f"{'word ' * 12}{path}"))
    lines = screen.getvalue().splitlines()
    assert lines[0] == "note word word word word word word word"
    assert lines[1] == "     word word word word word"
    assert lines[2] == f"     {path}"


@pytest.mark.parametrize("options", [{}, {"quiet": True}, {"as_json": True}])
def test_an_error_passes_through(options: dict[str, bool]) -> None:
    """The error of a workflow reaches the caller, whatever the sink."""
    with pytest.raises(errors.HeadError, match="no luck"):
        Output(**options).follow(broken())


def test_an_interrupted_workflow_can_clean_up() -> None:
    """When showing an event fails, the workflow is closed before the error goes on."""
    closed = []

    def steps() -> Workflow[None]:
        try:
            yield Note(None)  # type: ignore[arg-type]
        finally:
            closed.append(True)

    with pytest.raises(TypeError):
        Output().follow(steps())
    assert closed == [True]


def test_a_stop_while_printing_reaches_the_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while an event is shown is the workflow's to deal with, as one inside it would be."""

    def steps() -> Workflow[None]:
        try:
            yield Note("x")
        except BaseException as error:
            error.add_note("kept")
            raise

    def stop(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_show_line", stop)
    with pytest.raises(KeyboardInterrupt) as caught:
        Output().follow(steps())
    assert caught.value.__notes__ == ["kept"]


def test_texts_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """No text is taken for markup or an emoji's name, wherever it stands, and none is wrapped."""
    output = Output()
    output.line("x" * 200 + AWKWARD)
    output.heading(AWKWARD)
    output.follow(work(Note(AWKWARD), Warned(AWKWARD), Finished(AWKWARD, AWKWARD)))
    output.error(errors.HeadError(AWKWARD))
    out, err = capsys.readouterr()
    assert out == f"{'x' * 200}{AWKWARD}\n\n{AWKWARD}\n"
    assert err.splitlines()[:4] == [
        f"     {AWKWARD}",
        f"note {AWKWARD}",
        f"done {AWKWARD}: {AWKWARD}",
        f"error: {AWKWARD}",
    ]


def test_tables_fit_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Long cells go on below, nothing of them is lost, and no line ends in blanks."""
    Output().table(("worker", "state", "layers"), [("[a]", "word " * 40, "3"), ("b", "ok", "12")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(lines).count("word") == 40
    assert lines[1].startswith("[a]     word word")
    assert lines[1].endswith("       3")
    assert lines[-1].endswith("  12")
    assert lines == [line.rstrip() for line in lines]


@pytest.mark.parametrize("columns", ["1", "12", "30"])
def test_a_terminal_too_narrow_for_a_table_is_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """However narrow it is, every cell is shown in pieces."""
    monkeypatch.setenv("COLUMNS", columns)
    names = tuple(f"column{number}" for number in range(9))
    Output().table(names, [tuple(name.upper() for name in names)])
    shown = capsys.readouterr().out
    assert shown.count("COLU") == shown.count("colu") == len(names)


@pytest.mark.parametrize(("columns", "most"), [("40", 40), ("200", 80)])
def test_a_paragraph_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str, most: int
) -> None:
    """It is wrapped between words, further lines stand below its text, and nothing is lost."""
    monkeypatch.setenv("COLUMNS", columns)
    Output().paragraph("word " * 40, mark="- ")
    lines = capsys.readouterr().out.splitlines()
    assert most - len(" word") < max(map(len, lines)) <= most
    assert [line[:6] for line in lines] == ["- word", *["  word"] * (len(lines) - 1)]
    assert "".join(lines).count("word") == 40


def test_a_long_word_stays_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """A path can be copied from a list of values, however long it is."""
    path = "/models/" + "x" * 100
    Output().pairs([("folder", path), ("rdma", "on")])
    assert capsys.readouterr().out.splitlines() == [f"folder  {path}", "rdma    on"]


def test_data_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A value is printed as JSON on stdout, with tuples as lists and paths as text."""
    Output(as_json=True).data({"a": (1, None), "b": errors})
    assert json.loads(capsys.readouterr().out)["a"] == [1, None]


def test_an_error_says_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    """Details first, then the error, then the next step; the exit code comes back."""
    error = errors.WorkerNotReadyError("a", reason="it ended", log_tail=("[x] oom",))
    assert Output().error(error) == 33
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["  [x] oom", "error: worker a is not ready: it ended"]
    assert lines[2].startswith("  next: ")


def test_an_error_tells_what_was_noted_on_it(capsys: pytest.CaptureFixture[str]) -> None:
    """What went wrong while cleaning up stands beside the error, in words and in JSON."""
    error = errors.HeadError("no luck")
    error.add_note("a worker is left")
    Output().error(error)
    assert "  note: a worker is left" in capsys.readouterr().err.splitlines()
    Output(as_json=True).error(error)
    assert json.loads(capsys.readouterr().err)["notes"] == ["a worker is left"]


def test_an_error_in_json_has_all_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    """Kind, message, next step, exit code and details are one JSON object on stderr."""
    error = errors.BuildError("compiling", host="h", log="/l", excerpt=("a.cpp:3: error", "x"))
    assert Output(as_json=True).error(error) == 13
    out, err = capsys.readouterr()
    assert out == ""
    report = json.loads(err)
    assert report["error"] == "BuildError"
    assert report["message"] == str(error)
    assert report["exit_code"] == 13
    assert report["details"] == ["a.cpp:3: error", "x"]
    assert report["next"]


def test_bars_fit_eighty_columns() -> None:
    """Name, bar, amount, rate and time left stand on one line, even if all of them are long."""
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with module._BarSink(console) as sink:
        sink.show(Progress("to a-machine-with-a-rather-long-name.example", 0, 1, Unit.BYTES))
        task = sink._progress.tasks[0]
        task.completed, task.total = 123 << 20, 456 << 30
        task.finished_speed = 1.23 * 2**30
        shown = console.render_lines(sink._progress.get_renderable(), pad=False)
    assert len(shown) == 1
    text = "".join(segment.text for segment in shown[0])
    assert "123 MiB/456 GiB" in text
    assert text.startswith("to a-machine-with-a-rat")
