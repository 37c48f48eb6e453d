"""Wait for states, never for times: a busy machine is slow, which is no failure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# Only something that never comes is waited for so long.
PATIENCE = 120.0


def wait_for(condition: Callable[[], bool], *, what: str = "it") -> None:
    """Wait until a condition holds; fail the test if it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


def state_of(pid: int) -> str:
    """Return the kernel's letter for a process, X if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_gone(pid: int) -> bool:
    """Tell whether a process has ended; one that only waits to be reaped has."""
    return state_of(pid) in {"X", "Z"}


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    return not is_gone(pid)
