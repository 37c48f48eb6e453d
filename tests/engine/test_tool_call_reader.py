"""The reader of MiniMax-M3's tool calls and its grammars, by the engine's own test program."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

PROGRAM_SECONDS = 300
# Texts, streams and grammars that the program tries, less a reserve for cases that are merged.
FEWEST_CHECKS = 500


def test_the_reader_and_the_grammars_do_as_written(engine: Engine) -> None:
    """The program finds no text read wrongly, no stream taken back and no grammar too tight."""
    program = engine.bin / "ggufcluster-tool-calls"

    done = subprocess.run(
        [str(program)], capture_output=True, text=True, timeout=PROGRAM_SECONDS, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("ok ") >= FEWEST_CHECKS
