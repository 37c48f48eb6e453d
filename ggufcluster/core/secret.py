"""Text that must never be shown."""

from __future__ import annotations


class Secret:
    """Hold a secret that prints as a mask.

    Not a subclass of str on purpose: shell quoting would return a plain str and lose the mask.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret itself; the only way to its text."""
        return self._text

    def __str__(self) -> str:
        return "********"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)
