"""Text of strangers on a terminal."""

from __future__ import annotations

import pytest

from ggufcluster.core.terminal_text import harmless, one_line


@pytest.mark.parametrize("mark", ["\x1b", "\x07", "\r", "\x08", "\x9b", "\x7f", "\u202e", "\u2066"])
def test_what_moves_a_terminal_is_replaced(mark: str) -> None:
    """Control characters and overrides of the direction become visible."""
    assert harmless(f"a{mark}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_other_text_stays() -> None:
    """Lines, tabs and letters of all scripts are left as they are."""
    text = "a\n\tä 漢字 👍 العربية"
    assert harmless(text) == text


def test_one_line_keeps_both_ends() -> None:
    """A long text is cut in its middle to exactly the room there is."""
    assert one_line("a\n  b", 10) == "a b"
    cut = one_line("begin" + "x" * 100 + "end", 20)
    assert len(cut) == 20
    assert cut.startswith("begin")
    assert cut.endswith("end")
    assert "..." in cut
