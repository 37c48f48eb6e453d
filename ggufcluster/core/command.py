"""A command as a value: built from pieces, quoted in one place, masked when shown."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ggufcluster.core.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Piece = str | Secret

# For `env` a program whose path holds "=" is one more variable.
_BEHIND_SH = ("sh", "-c", 'exec "$@"', "sh")


@dataclass(frozen=True, slots=True)
class Command:
    """One program call on some host.

    Attributes:
        argv: Program and arguments; a `Secret` piece is masked by `shown`.
        env: Variables added to the host's own environment.
        cwd: Folder to run in, absolute on that host; None keeps the default.
        stdin: Bytes fed to the program; None connects it to /dev/null.
    """

    argv: tuple[Piece, ...]
    env: Mapping[str, Piece] = field(default_factory=dict)
    cwd: str | None = None
    stdin: bytes | None = None

    def shell(self) -> str:
        """Return the text for a POSIX shell, every piece quoted, secrets in clear."""
        return self._render(_reveal)

    def shown(self) -> str:
        """Return the text for people and logs: quoted, secrets masked."""
        return self._render(str)

    def plain_argv(self) -> list[str]:
        """Return argv with secrets in clear, for starting a local process."""
        return [_reveal(piece) for piece in self.argv]

    def with_variables(self) -> tuple[Piece, ...]:
        """Return argv for a caller that sets no variables: ``env`` goes first if there are any."""
        if not self.env:
            return self.argv
        pairs = (_assignment(name, value) for name, value in self.env.items())
        return ("env", *pairs, *(_BEHIND_SH if "=" in _reveal(self.argv[0]) else ()), *self.argv)

    def mask(self, text: str) -> str:
        """Return text with every secret of this command masked, for output that may repeat one."""
        for piece in (*self.argv, *self.env.values()):
            if isinstance(piece, Secret) and piece.reveal():
                text = text.replace(piece.reveal(), str(piece))
        return text

    def _render(self, text_of: Callable[[Piece], str]) -> str:
        line = " ".join(shlex.quote(text_of(piece)) for piece in self.with_variables())
        return f"cd {shlex.quote(self.cwd)} && {line}" if self.cwd else line


def command(*argv: Piece) -> Command:
    """Build a `Command` from its words."""
    return Command(argv)


def script(text: str, *arguments: str, stdin: bytes | None = None) -> Command:
    """Build a call of ``sh`` with a script; arguments arrive as ``$1``, ``$2``, unquoted by it."""
    return Command(("sh", "-c", text, "sh", *arguments), stdin=stdin)


def _assignment(name: str, value: Piece) -> Piece:
    if isinstance(value, Secret):
        return Secret(f"{name}={value.reveal()}")
    return f"{name}={value}"


def _reveal(piece: Piece) -> str:
    return piece.reveal() if isinstance(piece, Secret) else piece
