"""What ninja, make and the compilers print: progress, and the lines that tell why it failed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Set as NINJA_STATUS, so that a user's own setting does not get in the way.
NINJA_STATUS = "[%f/%t] "
EXCERPT_LINES = 20
_WIDTH = 240
OUT_OF_MEMORY = "The compiler ran out of memory: try again with fewer --jobs."
DISK_FULL = "The disk is full."

_NINJA = re.compile(r"^\[(\d+)/(\d+)\] ")
_MAKE = re.compile(r"^\[\s*(\d+)%\] ")
_KILLED = re.compile(
    r"Killed signal terminated program|fatal error: Killed|died due to signal 9|"
    r"virtual memory exhausted|out of memory allocating|Cannot allocate memory"
)
_NO_SPACE = re.compile(r"No space left on device")
_ERROR = re.compile(
    r"^\S.*?:\d+(:\d+)?: (fatal )?error: |"  # c++: file:line:column
    r"^\S.*?\(\d+\): (catastrophic )?error|"  # nvcc: file(line)
    r"^(nvcc|ptxas) .*(fatal|error)|^(nvcc|cc1plus|c\+\+|g\+\+|clang\+*|cicc).*error: |"
    r"undefined reference to|multiple definition of|^(/\S*/)?ld(\.\w+)?: (error|cannot find)|"
    r"cannot find -l|^collect2: error|^CMake Error|^ninja: (error|fatal)|^make.*\*\*\* |"
    r"^FAILED: "
)
# Following lines that belong to an error: source line, caret, CMake's indented explanation.
_CONTINUED = re.compile(r"^\s+\S|^$")


@dataclass(frozen=True, slots=True)
class BuildStep:
    """Steps done and planned; make counts per cent."""

    done: int
    total: int


def parse_step(line: str) -> BuildStep | None:
    """Read the counts in front of a line of ninja or make; None if there are none."""
    if ninja := _NINJA.match(line):
        return BuildStep(int(ninja[1]), int(ninja[2]))
    if make := _MAKE.match(line):
        return BuildStep(int(make[1]), 100)
    return None


def failing_lines(log: Sequence[str]) -> tuple[str, ...]:
    """Pick the lines that tell why a build failed, at most `EXCERPT_LINES`, causes first.

    Falls back to the last lines if none looks like an error.
    """
    causes = _causes(log)
    errors = tuple(dict.fromkeys(_with_context(log)))
    if not causes and not errors:
        errors = tuple(line for line in log if line.strip())[-10:]
    return (*causes, *(_shortened(line) for line in errors))[:EXCERPT_LINES]


def _shortened(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[:_WIDTH]} ..."


def _causes(log: Iterable[str]) -> tuple[str, ...]:
    text = "\n".join(log)
    found = []
    if _KILLED.search(text):
        found.append(OUT_OF_MEMORY)
    if _NO_SPACE.search(text):
        found.append(DISK_FULL)
    return tuple(found)


def _with_context(log: Sequence[str]) -> Iterator[str]:
    left = 0
    for line in log:
        if _ERROR.search(line) or _KILLED.search(line) or _NO_SPACE.search(line):
            left = 3
            yield line.rstrip()
        elif left and _CONTINUED.match(line):
            left -= 1
            if line.strip():
                yield line.rstrip()
        else:
            left = 0
