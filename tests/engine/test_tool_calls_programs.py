"""How MiniMax-M3's tool calls and other dialects are read, by the engine's own test programs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

PROGRAM_SECONDS = 300


@pytest.mark.parametrize(
    ("program", "fewest"), [("ggufcluster-tool-calls", 250), ("ggufcluster-dialects", 25)]
)
def test_the_program_finds_nothing_wrong(engine: Engine, program: str, fewest: int) -> None:
    """Every text, stream, grammar and request that the program tries goes right."""
    done = subprocess.run(
        [str(engine.bin / program)],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )

    # The engine's log, which may warn of what a case is about, shares stderr with the failures.
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ok ") >= fewest
