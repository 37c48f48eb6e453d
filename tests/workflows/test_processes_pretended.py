"""The pretended hosts, held against this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.command import Command
from ggufcluster.workflows import processes
from tests.waiting import is_gone, wait_for
from tests.workflows.fakes import Host, read_call

# Says how it was called and what it was given.
PROGRAM = """#!/bin/sh
printf '%s|' "$0" "$@" "FIRST=${PRETENDED_FIRST-none}" "SECOND=${PRETENDED_SECOND-none}"
"""


@pytest.mark.parametrize("folder", ["plain", "a=b"])
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"PRETENDED_FIRST": "1"},
        {"PRETENDED_FIRST": "it's a=b $x", "PRETENDED_SECOND": ""},
    ],
    ids=["none", "one", "two"],
)
def test_a_program_is_started_as_on_a_real_host(
    tmp_path: Path, folder: str, variables: dict[str, str]
) -> None:
    """A pretended host notes the words and variables with which a real one runs the program."""
    program = tmp_path / folder / "say"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    call = Command((str(program), "env", "PRETENDED_FIRST=9", "--host", "a b"), variables)

    run = str(tmp_path / "run")
    pid = processes.start(LocalRemote(), run, call, owner="me")
    wait_for(lambda: is_gone(pid))
    host = Host("pretended")
    processes.start(host, run, call, owner="me")

    noted = host.processes[run]
    assert noted.variables == variables
    told = [f"{n}={noted.variables.get(f'PRETENDED_{n}', 'none')}" for n in ("FIRST", "SECOND")]
    assert Path(processes.log_path(run)).read_text() == "".join(
        f"{word}|" for word in (*noted.words, *told)
    )


def test_calls_within_calls_are_read() -> None:
    """Variables add up, the one nearest to the program wins."""
    words = ["env", "A=1", "B=2", "sh", "-c", 'exec "$@"', "sh", "env", "A=3=4", "say", "C=5"]
    assert read_call(words) == ({"A": "3=4", "B": "2"}, ["say", "C=5"])


@pytest.mark.parametrize("words", [["env", "A=1"], ["env", "-u", "A", "say"], []])
def test_a_call_that_is_not_understood_is_an_error(words: list[str]) -> None:
    """A call without a program, or with an option of env, is not taken for another one."""
    with pytest.raises(AssertionError, match=r"nothing is left|no option"):
        read_call(words)
