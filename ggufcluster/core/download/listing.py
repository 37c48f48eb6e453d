"""What a repository publishes: names, sizes and hashes of the files of one commit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from ggufcluster.errors import UnsafeNameError

_HEX = {"sha256": re.compile(r"[0-9a-f]{64}$"), "git-sha1": re.compile(r"[0-9a-f]{40}$")}
_RESERVED = ".ggufcluster"


@dataclass(frozen=True, slots=True)
class Digest:
    """A published hash.

    Attributes:
        kind: ``sha256`` for large files, ``git-sha1`` for those that git itself keeps.
        value: Lower case hex.
    """

    kind: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Digest:
        """Read ``kind:hex``; raises ValueError."""
        kind, _, value = text.partition(":")
        if kind not in _HEX or not _HEX[kind].match(value):
            raise ValueError(f"{text!r} is no digest")
        return cls(kind, value)

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}"


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One file of a commit; `size` in bytes, `digest` None if none is published."""

    path: str
    size: int
    digest: Digest | None


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of one commit of a repository."""

    repository: str
    revision: str
    commit: str
    files: tuple[PublishedFile, ...]


def require_safe(path: str, *, repository: str) -> None:
    """Make sure that a published name stays inside the folder it is put in.

    Raises:
        UnsafeNameError: It does not, or is none that a file can have.
    """
    parts = path.split("/")
    odd = any(part in {"", ".", ".."} or len(part.encode()) > 240 for part in parts)
    control = any(ord(character) < 32 or character in "\\\x7f" for character in path)
    if odd or control or PurePosixPath(path).is_absolute() or parts[0] == _RESERVED:
        raise UnsafeNameError(f"publishes a file named {path!r}", where=repository)


def require_repository_name(name: str) -> None:
    """Make sure that a repository's name is ``owner/name``; raises ValueError."""
    if not re.match(r"[\w.-]+/[\w.-]+$", name, re.ASCII) or {".", ".."} & set(name.split("/")):
        raise ValueError(f"{name!r} is no repository: write OWNER/NAME")
