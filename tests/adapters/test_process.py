"""Reading a running program, with a clock that a pretended program moves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ggufcluster.adapters.process import Chunk, Stream, run_to_end, stream_lines
from ggufcluster.core.command import command
from ggufcluster.errors import CommandTimeoutError, RemoteCommandError

NAME = command("program")


@dataclass
class Script:
    """A program that says something after each number of seconds, and then ends or hangs.

    Attributes:
        says: Pauses in seconds, each followed by a line.
        code: How it ends; None if it never does.
        now: The time.
        ended: Whether it was ended from outside.
        closed: Whether it was let go.
    """

    says: list[float]
    code: int | None = 0
    now: float = 0.0
    ended: bool = False
    closed: bool = False

    @property
    def at_end(self) -> bool:
        """Whether there is no more output."""
        return not self.says

    def read(self, wait: float) -> Chunk | None:
        """Let time pass until the next line, or the whole wait."""
        if not self.says or self.says[0] > wait:
            self.now += wait
            if self.says:
                self.says[0] -= wait
            return None
        self.now += self.says.pop(0)
        return Chunk(Stream.STDOUT, b"tick\n")

    def exit_code(self) -> int | None:
        """Return the code once everything was said."""
        return self.code if self.at_end else None

    def write(self, data: bytes) -> None:
        """Take nothing."""

    def close_input(self) -> None:
        """Take no more."""

    def end(self) -> None:
        """Note that it was ended."""
        self.ended = True

    def close(self) -> None:
        """Note that it was let go."""
        self.closed = True


def running(monkeypatch: pytest.MonkeyPatch, script: Script) -> Script:
    """Let its clock be the clock."""
    monkeypatch.setattr("ggufcluster.adapters.process.time.monotonic", lambda: script.now)
    return script


def test_steady_output_outlasts_the_limit_on_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines half a limit apart go on for ten limits."""
    script = running(monkeypatch, Script([1.0] * 20))
    assert list(stream_lines(script, NAME, host="h", quiet_timeout=2.0)) == ["tick"] * 20
    assert script.now >= 20
    assert (script.ended, script.closed) == (False, True)


def test_silence_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the last line the limit passes once, then the program is ended and let go."""
    script = running(monkeypatch, Script([1.0, 1.0, 500.0]))
    lines = stream_lines(script, NAME, host="h", quiet_timeout=2.0)
    assert [next(lines), next(lines)] == ["tick", "tick"]
    with pytest.raises(CommandTimeoutError) as caught:
        next(lines)
    assert (caught.value.host, caught.value.seconds) == ("h", 2.0)
    assert script.now == pytest.approx(4.0)
    assert (script.ended, script.closed) == (True, True)


def test_a_deadline_is_on_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output does not put off the deadline of a command that is run to its end."""
    script = running(monkeypatch, Script([1.0] * 20))
    with pytest.raises(CommandTimeoutError):
        run_to_end(script, NAME, host="h", timeout=5.0)
    assert script.now == pytest.approx(5.0)
    assert script.ended


def test_a_failure_is_told_after_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is looked at when all was read."""
    script = running(monkeypatch, Script([1.0], code=5))
    lines = stream_lines(script, NAME, host="h", quiet_timeout=None)
    assert next(lines) == "tick"
    with pytest.raises(RemoteCommandError) as caught:
        next(lines)
    assert caught.value.exit_code == 5
