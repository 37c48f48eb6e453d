"""Commands and parsers of managed processes; their effect is tested with the workflow."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from ggufcluster.core.command import Command
from ggufcluster.core.managed_process import (
    Life,
    OwnedProcess,
    ProcessState,
    parse_list,
    parse_pid,
    parse_state,
    parse_stop,
    start_command,
)
from ggufcluster.core.secret import Secret


def test_secrets_of_the_program_stay_masked() -> None:
    """The command that starts a program shows neither its secret words nor its variables."""
    program = Command(("server", "--key", Secret("sesame")), {"TOKEN": Secret("opensesame")})
    start = start_command(PurePosixPath("/run/x"), "me", program)
    assert "sesame" not in start.shown()
    assert start.plain_argv()[4:] == [
        *("/run/x", "me", "env", "TOKEN=opensesame", "server", "--key", "sesame")
    ]


@pytest.mark.parametrize(
    ("output", "state"),
    [
        ("", ProcessState(Life.ABSENT)),
        ("absent 0 0\n", ProcessState(Life.ABSENT)),
        ("alive 12 3456\n", ProcessState(Life.ALIVE, 12)),
        ("frozen 12 3456\n", ProcessState(Life.FROZEN, 12)),
        ("Welcome to spark!\ndead 12 3456\n", ProcessState(Life.DEAD, 12)),
    ],
)
def test_states_are_read(output: str, state: ProcessState) -> None:
    """The last line tells state and pid; what a login script prints before it does not count."""
    assert parse_state(output) == state


def test_only_living_processes_hold_resources() -> None:
    """A frozen process still holds memory and ports, a dead or absent one does not."""
    assert {life for life in Life if life.holds_resources} == {Life.ALIVE, Life.FROZEN}


def test_outcome_and_pid_are_read_past_chatter() -> None:
    """Starting gives the pid, stopping the outcome, each in the last line."""
    assert parse_pid("Hello!\n123 456 boot\n") == 123
    assert parse_stop("Hello!\nkilled\n") == "killed"
    assert parse_stop("") == "absent"


def test_a_list_names_run_folder_owner_and_state() -> None:
    """Each line is one process, with spaces in names; other lines are passed over."""
    output = "Hello!\n/my run/c/w\tid:/s me@head\talive 1 2\n/my run/c/v\t\tdead 3 4\n"
    assert parse_list(output) == (
        OwnedProcess("/my run/c/w", "id:/s me@head", ProcessState(Life.ALIVE, 1)),
        OwnedProcess("/my run/c/v", "", ProcessState(Life.DEAD, 3)),
    )
