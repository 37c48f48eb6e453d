"""Limits that no file can widen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import ggufcluster
from ggufcluster.core.gguf_cursor import shown
from tests.core.hostile_headers import HOSTILE

ROOT = Path(ggufcluster.__file__).parents[1]

# How each of them ends; "read" are those that are within all limits, with little kept of them.
ENDS = {
    "huge counts": "refused: claims 4611686018427387904 tensors",
    "endless zeros": "refused: a key at byte 24 has no name",
    "endless tensors": "read: 0 keys, 32768 tensors",
    "endless keys": "refused: has keys of more than",
    "endless long texts": "refused: has a header of more than",
    "endless short strings": "read: 1 keys",
    "endless kept strings": "refused: claims 1049600 strings",
    "endless kept numbers": "read: 8192 keys",
    "one text of ASCII that ends wide": "refused: a key at byte",
    "a string longer than any file": "refused: claims 4611686018427387904 bytes in a string",
    "the longest string that may be": "refused: claims 8680820740569200760 bytes",
    "the longest array that may be": "read: 1 keys, 0 tensors",
    "arrays in arrays": "refused: key 'k' holds an array of arrays",
    "a wide alignment": "refused: the file has",
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_header_ends_in_little_memory(name: str) -> None:
    """A process that may have 200 MB in all comes to an end, and not for want of memory."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.core.hostile_headers", name],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(ENDS[name])


def test_names_are_shown_harmlessly() -> None:
    """A name in a message is short and without control characters."""
    assert shown("blk.0\x1b[31m\u202e") == r"'blk.0\x1b[31m\u202e'"
    assert len(shown("x" * 10_000)) < 100
