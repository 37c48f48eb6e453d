"""Texts of tokens."""

from __future__ import annotations

from ggufcluster.bindings.token_texts import TokenTexts

CONTROL = {7: b"<call>", 8: b"<end>"}


def texts(asked: list[tuple[int, bool]]) -> TokenTexts:
    """Texts of a vocabulary with two control tokens; keeps what is looked up."""

    def look_up(token: int, special: bool) -> bytes:  # noqa: FBT001 - called by position
        asked.append((token, special))
        if token in CONTROL:
            return CONTROL[token] if special else b""
        return b"%d." % token

    return TokenTexts(look_up)


def test_each_token_is_looked_up_once() -> None:
    """Texts of long answers cost no new look-ups."""
    asked: list[tuple[int, bool]] = []
    found = texts(asked)
    assert [found.join([1, 2, 1]), found.join([1, 2, 1, 3])] == [b"1.2.1.", b"1.2.1.3."]
    assert asked == [(1, False), (2, False), (3, False)]
    assert found.join([]) == b""


def test_control_tokens_are_spelled_if_asked_for() -> None:
    """All of them, or those that belong to an answer; the plain texts stay as they are."""
    found = texts([])
    assert found.join([1, 7, 8]) == b"1."
    assert found.join([1, 7, 8], special=True) == b"1.<call><end>"
    spelled = found.spelling([7])
    assert spelled.join([1, 7, 8]) == b"1.<call>"
    assert spelled is found.spelling((7,))
    assert found.join([1, 7, 8]) == b"1."
