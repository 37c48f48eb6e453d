"""Text that is never shown."""

from __future__ import annotations

from ggufcluster.core.secret import Secret


def test_no_way_of_printing_shows_the_text() -> None:
    """Only `reveal` gives the text; str, repr and formatting give the mask."""
    secret = Secret("sesame")
    shown = f"{secret} {secret!r} {[secret]} {secret!s:>20}"
    assert "sesame" not in shown
    assert secret.reveal() == "sesame"


def test_equal_texts_are_equal_secrets() -> None:
    """Secrets compare and hash by their text, and never equal a plain string."""
    assert Secret("a") == Secret("a")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret("a") != "a"
