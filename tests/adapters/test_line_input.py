"""Lines without a terminal; with one, tests/cli/test_chat.py types them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.line_input import LineInput

if TYPE_CHECKING:
    from pathlib import Path


def reader(monkeypatch: pytest.MonkeyPatch, folder: Path, given: str) -> LineInput:
    """A reader whose stdin is no terminal."""
    monkeypatch.setattr("sys.stdin", io.StringIO(given))
    return LineInput(folder / "history", lambda _word: [])


def test_lines_come_without_prompt_or_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """From a pipe lines come as they are, the end of it as EOFError; nothing is written."""
    lines = reader(monkeypatch, tmp_path, "one\n\nlast")
    assert [lines.read("> ") for _ in range(3)] == ["one", "", "last"]
    with pytest.raises(EOFError):
        lines.read("> ")
    assert capsys.readouterr() == ("", "")
    assert not (tmp_path / "history").exists()


def test_a_backslash_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A line that ends with one goes on in the next; an answer to a question does not."""
    lines = reader(monkeypatch, tmp_path, "a\\\nb\\\nc\ny\\\n")
    assert lines.read("> ") == "a\nb\nc"
    assert lines.read("? ", keep=False) == "y\\"
