"""Start, inspect and stop managed processes over a `Remote`."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core import managed_process
from ggufcluster.core.command import command
from ggufcluster.errors import HostError, RemoteCommandError

if TYPE_CHECKING:
    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.command import Command
    from ggufcluster.core.managed_process import OwnedProcess, ProcessState

# A command of a moment; a host that builds an engine beside it may take its time.
_SHORT = 60.0
_START_SECONDS = 90.0  # the command itself waits a minute for the process to name itself
_GRACE_SECONDS = 10
_TRIES = 3


def start(remote: Remote, run: str, program: Command, *, owner: str) -> int:
    """Start a program in its run folder and return its pid."""
    start_command = managed_process.start_command(PurePosixPath(run), owner, program)
    return managed_process.parse_pid(remote.run(start_command, timeout=_START_SECONDS).stdout)


def inspect(remote: Remote, run: str) -> ProcessState:
    """Return what became of the process of a run folder."""
    inspect_command = managed_process.inspect_command(PurePosixPath(run))
    return managed_process.parse_state(remote.run(inspect_command, timeout=_SHORT).stdout)


def stop(remote: Remote, run: str) -> str:
    """End the process of a run folder; return absent, dead, ended or killed.

    Raises:
        HostError: It could not be ended even by force.
    """
    stop_command = managed_process.stop_command(PurePosixPath(run), grace_seconds=_GRACE_SECONDS)
    result = remote.run(stop_command, timeout=_SHORT + 2 * _GRACE_SECONDS)
    outcome = managed_process.parse_stop(result.stdout)
    if outcome == "stuck":
        raise HostError(f"{remote.name}: the process of {run} does not end", host=remote.name)
    return outcome


def clear(remote: Remote, run: str) -> str:
    """End the process of a run folder and remove the folder; return how the process ended.

    Its last log is kept beside the folders of all clusters, as ``<name>.last.log``.

    Raises:
        HostError: It could not be ended even by force.
    """
    folder, log = PurePosixPath(run), PurePosixPath(last_log_path(run))
    outcome = stop(remote, run)
    for _ in range(_TRIES):
        removed = remote.run(
            managed_process.remove_command(folder, keep_log_as=log), timeout=_SHORT
        )
        if removed.stdout.strip() == "removed":
            return outcome
        outcome = stop(remote, run)  # it was being started just now
    raise HostError(f"{remote.name}: {run} is taken again and again", host=remote.name)


def owned(remote: Remote, runs: PurePosixPath) -> tuple[OwnedProcess, ...]:
    """List every managed process under a folder of run folders."""
    listing = remote.run(managed_process.list_command(runs), timeout=_SHORT).stdout
    return managed_process.parse_list(listing)


def log_path(run: str) -> str:
    """Return the log file of a run folder."""
    return f"{run}/log"


def last_log_path(run: str) -> str:
    """Return where the log of a run folder is kept once the folder has been cleared."""
    folder = PurePosixPath(run)
    return str(folder.parent.parent / f"{folder.name}.last.log")


def log_tail(remote: Remote, run: str, *, lines: int = 20) -> tuple[str, ...]:
    """Return the last lines of the log of a run folder; none if there is no log."""
    tail = command("tail", "-n", str(lines), log_path(run))
    try:
        return tuple(remote.run(tail, timeout=_SHORT).stdout.splitlines())
    except RemoteCommandError:
        return ()
