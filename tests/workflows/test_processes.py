"""Managed processes, real ones, on this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.command import Command, command
from ggufcluster.core.managed_process import Life
from ggufcluster.errors import HostError, RemoteCommandError
from ggufcluster.testing import FakeRemote
from ggufcluster.workflows import processes
from tests.waiting import is_alive, is_gone, state_of, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = LocalRemote()
OWNER = "id:/home/me/state me@here"
SLEEP = command("sleep", "60")
# Ends neither at TERM nor at its parent's end, and says when it is ready.
STUBBORN = Command(("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"))


@pytest.fixture
def run(tmp_path: Path) -> Iterator[str]:
    """Give a run folder with an awkward name; end whatever still runs there."""
    folder = tmp_path / 'my "own" run\'s $HOME' / "c 1" / "w"
    yield str(folder)
    if processes.inspect(HERE, str(folder)).life.holds_resources:
        os.kill(processes.inspect(HERE, str(folder)).pid, signal.SIGKILL)


def log_of(run: str) -> str:
    """Return the whole log."""
    return Path(processes.log_path(run)).read_text(encoding="utf-8")


def test_a_process_lives_and_is_ended(run: str) -> None:
    """It is found alive under the pid that starting gave, and after stopping it is gone."""
    pid = processes.start(HERE, run, SLEEP, owner=OWNER)
    state = processes.inspect(HERE, run)
    assert (state.life, state.pid) == (Life.ALIVE, pid)
    assert processes.stop(HERE, run) == "ended"
    assert is_gone(pid)
    assert processes.inspect(HERE, run).life is Life.ABSENT
    assert processes.stop(HERE, run) == "absent"


def test_it_stands_on_its_own(run: str) -> None:
    """It leads a session of its own, reads nothing, ignores SIGPIPE and writes to its log."""
    program = Command(
        ("sh", "-c", 'cat; printf "%s\\n" "$GREETING" "$@" >&2; exec sleep 60', "sh", "a'b", "$x"),
        {"GREETING": "it's me"},
    )
    pid = processes.start(HERE, run, program, owner=OWNER)
    wait_for(lambda: "$x" in log_of(run))
    assert log_of(run) == "it's me\na'b\n$x\n"
    assert os.getsid(pid) == pid
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    assert ignored & 1 << signal.SIGPIPE - 1
    assert Path(processes.log_path(run)).stat().st_mode & 0o077 == 0
    processes.stop(HERE, run)


def test_one_that_ignores_the_request_is_killed(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the grace time, KILL follows TERM."""
    monkeypatch.setattr(processes, "_GRACE_SECONDS", 0)
    pid = processes.start(HERE, run, STUBBORN, owner=OWNER)
    wait_for(lambda: "ready" in log_of(run))
    assert processes.stop(HERE, run) == "killed"
    assert is_gone(pid)


def test_a_frozen_one_is_told_and_can_be_ended(run: str) -> None:
    """A stopped process is called frozen, and ending it wakes it to act on the request."""
    pid = processes.start(HERE, run, SLEEP, owner=OWNER)
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: state_of(pid) == "T")
    assert processes.inspect(HERE, run).life is Life.FROZEN
    assert processes.stop(HERE, run) == "ended"
    assert is_gone(pid)


def test_a_dead_one_is_told(run: str) -> None:
    """A process that has ended is dead until it is stopped, which only tidies up."""
    pid = processes.start(HERE, run, command("sh", "-c", "echo bye"), owner=OWNER)
    wait_for(lambda: is_gone(pid))
    assert processes.inspect(HERE, run).life is Life.DEAD
    assert processes.log_tail(HERE, run) == ("bye",)
    assert processes.stop(HERE, run) == "dead"
    assert processes.inspect(HERE, run).life is Life.ABSENT


def test_a_missing_program_is_dead_at_once(run: str) -> None:
    """Starting what is not there leaves a dead process whose log says why."""
    pid = processes.start(HERE, run, command("/nowhere/llama-server"), owner=OWNER)
    wait_for(lambda: is_gone(pid))
    assert processes.inspect(HERE, run).life is Life.DEAD
    assert any("/nowhere/llama-server" in line for line in processes.log_tail(HERE, run))


@pytest.mark.parametrize("word", [1, 2], ids=["other start time", "other boot"])
def test_a_stranger_with_the_same_pid_is_left_alone(run: str, word: int) -> None:
    """A pid whose start time or boot differs belongs to somebody else and is never signalled."""
    pid = processes.start(HERE, run, SLEEP, owner=OWNER)
    file = Path(run, "pid")
    proper = file.read_text(encoding="utf-8")
    words = proper.split()
    words[word] = "1"
    file.write_text(" ".join(words), encoding="utf-8")
    assert processes.inspect(HERE, run).life is Life.DEAD
    assert processes.stop(HERE, run) == "dead"
    assert is_alive(pid)
    file.write_text(proper, encoding="utf-8")


@pytest.mark.parametrize("text", ["", "\n", "x", "1", "-1 0 0", "1 0", "$(id) ; x"])
def test_a_damaged_pid_file_harms_nobody(run: str, text: str) -> None:
    """Whatever stands in a pid file, nothing is signalled and nothing is called alive."""
    Path(run).mkdir(parents=True)
    Path(run, "pid").write_text(text, encoding="utf-8")
    assert not processes.inspect(HERE, run).life.holds_resources
    assert processes.stop(HERE, run) in {"absent", "dead"}


def test_all_of_ours_are_listed(run: str) -> None:
    """Every run folder with a process is listed with its owner and state; others are not."""
    runs = Path(run).parents[1]
    second = str(Path(run).with_name("w 2"))
    processes.start(HERE, run, SLEEP, owner=OWNER)
    processes.start(HERE, second, SLEEP, owner=OWNER)
    processes.stop(HERE, second)
    (listed,) = processes.owned(HERE, PurePosixPath(runs))
    assert (listed.run, listed.owner, listed.state.life) == (run, OWNER, Life.ALIVE)
    assert processes.owned(HERE, PurePosixPath(runs, "nothing")) == ()
    processes.stop(HERE, run)


def test_the_tail_of_a_missing_log_is_empty(run: str) -> None:
    """No log is no error."""
    assert processes.log_tail(HERE, run) == ()


def test_one_that_does_not_end_is_an_error() -> None:
    """A process that even KILL does not end is named with its host."""
    remote = FakeRemote(name="spark").on("wait_gone", "stuck\n")
    with pytest.raises(HostError, match=r"spark: the process of /r/c/w does not end"):
        processes.stop(remote, "/r/c/w")


def test_one_that_cannot_name_itself_is_an_error_at_once(run: str) -> None:
    """A process that ends before its pid file is written is not waited for."""
    Path(run, "pid.new").mkdir(parents=True)
    with pytest.raises(RemoteCommandError, match="pid"):
        processes.start(HERE, run, SLEEP, owner=OWNER)
    assert "pid.new" in log_of(run)
