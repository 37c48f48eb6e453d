"""The text of each token, looked up once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class _Texts(dict[int, bytes]):
    def __init__(self, look_up: Callable[[int, bool], bytes], *, special: bool) -> None:
        super().__init__()
        self._look_up = look_up
        self._special = special

    def __missing__(self, token: int) -> bytes:
        text = self[token] = self._look_up(token, self._special)
        return text


class TokenTexts:
    """Turns tokens into text; control tokens are nothing unless they are asked for.

    llama_cpp asks for the text of a whole answer with each of its tokens, and looks every one of
    them up each time, of which it takes 32 bytes at most.

    Args:
        look_up: Returns the text of one token; the second argument asks for control tokens.
    """

    def __init__(self, look_up: Callable[[int, bool], bytes]) -> None:
        self._look_up = look_up
        self._texts = {special: _Texts(look_up, special=special) for special in (False, True)}
        self._spelled: dict[frozenset[int], TokenTexts] = {}

    def join(self, tokens: Sequence[int], *, special: bool = False) -> bytes:
        """Return the text of tokens one after the other."""
        return b"".join(map(self._texts[special].__getitem__, tokens))

    def spelling(self, tokens: Iterable[int]) -> TokenTexts:
        """Return texts in which these control tokens are always spelled out."""
        key = frozenset(tokens)
        if key not in self._spelled:
            made = self._spelled[key] = TokenTexts(self._look_up)
            made._texts[False].update((token, self._texts[True][token]) for token in key)
        return self._spelled[key]
