"""The patch series as values: order, headers and what a failed application means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.errors import PatchError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DIFF_START = re.compile(r"^(diff --git |--- )", re.MULTILINE)
_HEADER_FIELD = re.compile(r"^([A-Z][A-Za-z-]*):[ \t]*(.*)$")
_TARGET = re.compile(r"^\+\+\+ (?:b/)?([^\t\n]+)", re.MULTILINE)
_SOURCE = re.compile(r"^--- (?:a/)?([^\t\n]+)", re.MULTILINE)
_FAILED_HUNK = re.compile(r"^error: patch failed: (.+):(\d+)$", re.MULTILINE)
_FAILED_FILE = re.compile(r"^error: (?:(.+?): )?(.+)$", re.MULTILINE)
_CHECKING = re.compile(r"^Checking patch (.+)\.\.\.$")
_OFFSET = re.compile(r"^Hunk #(\d+) succeeded at (\d+) \(offset (-?\d+) lines?\)")


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch of the series.

    Attributes:
        name: File name in ``patches/``.
        header: Fields before the diff, such as ``Description``; continued lines are joined.
        diff: The unified diff, from its first line on.
        files: Paths that it touches, in order, without repetition.
    """

    name: str
    header: Mapping[str, str]
    diff: str
    files: tuple[str, ...]


def parse_series(text: str) -> tuple[str, ...]:
    """Return the patch names in order; ``#`` starts a comment, blank lines do not count."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def parse_patch(name: str, text: str) -> Patch:
    """Read one patch file.

    Raises:
        PatchError: It holds no diff.
    """
    start = _DIFF_START.search(text)
    if start is None or not _TARGET.search(text):
        raise PatchError(name, file="nothing", reason="the file holds no unified diff")
    diff = text[start.start() :]
    return Patch(name, _parse_header(text[: start.start()]), diff, _files(diff))


def explain_failure(stderr: str) -> tuple[str, str]:
    """Turn what ``git apply`` printed into the file concerned and the reason."""
    if hunk := _FAILED_HUNK.search(stderr):
        return hunk[1], f"the lines around line {hunk[2]} are not what the patch expects"
    if failed := _FAILED_FILE.search(stderr):
        return failed[1] or "its files", failed[2]
    return "its files", stderr.strip() or "git apply gave no reason"


def shifted_hunks(output: str) -> tuple[tuple[str, str], ...]:
    """Return file and description of every hunk that git applied at another line than written."""
    found: list[tuple[str, str]] = []
    file = "its files"
    for line in output.splitlines():
        if checking := _CHECKING.match(line):
            file = checking[1]
        elif shift := _OFFSET.match(line):
            found.append((file, f"hunk {shift[1]} fits only {shift[3]} lines away"))
    return tuple(found)


def _parse_header(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if field := _HEADER_FIELD.match(line):
            current = field[1]
            fields[current] = field[2]
        elif current and line.startswith((" ", "\t")):
            fields[current] = f"{fields[current]} {line.strip()}".strip()
    return fields


def _files(diff: str) -> tuple[str, ...]:
    pairs = zip(_SOURCE.findall(diff), _TARGET.findall(diff), strict=False)
    names = (old if new == "/dev/null" else new for old, new in pairs)
    return tuple(dict.fromkeys(name.strip() for name in names))
