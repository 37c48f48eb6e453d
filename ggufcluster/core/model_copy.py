"""Shell commands that receive a model file on another host: append, check, then name it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.command import Command, script

if TYPE_CHECKING:
    from pathlib import PurePosixPath

PART = ".part"
_MOVED = "moved"

# $1 is the folder, $2 the file's name there.
_LOOK = r"""
size() { stat -c %s "$1" 2>/dev/null || echo -1; }
mkdir -p "$(dirname "$1/$2")" || exit 1
free=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
echo "$(size "$1/$2") $(size "$1/$2.part") $free"
"""

# $1 is the part, $2 its size as the sender knows it: nobody else may have added to it.
_APPEND = r"""
export LC_ALL=C
have=$(stat -c %s "$1" 2>/dev/null || echo 0)
[ "$have" = "$2" ] || { cat > /dev/null; echo moved; exit 0; }
cat >> "$1" || exit 1
stat -c %s "$1"
"""

_HASH = r"""sha256sum < "$1" | cut -d ' ' -f 1"""

# $1 is the part, $2 its final name, which nobody may have taken meanwhile.
_PUBLISH = r"""sync "$1" && mv -n "$1" "$2" && [ ! -e "$1" ]"""


@dataclass(frozen=True, slots=True)
class FarFile:
    """What lies on a host under a file's name.

    Attributes:
        size: Bytes of the file, None if it is not there.
        part: Bytes of it that an earlier run has sent.
        free: Bytes of space left there.
    """

    size: int | None
    part: int
    free: int


def look_command(folder: PurePosixPath, name: str) -> Command:
    """Build the command that makes the folder and says what is there."""
    return script(_LOOK, str(folder), name)


def parse_look(output: str) -> FarFile:
    """Read the output of `look_command`."""
    size, part, free = (int(word) for word in output.split())
    return FarFile(size if size >= 0 else None, max(0, part), free * 1024)


def append_command(part: PurePosixPath, offset: int, data: bytes) -> Command:
    """Build the command that adds bytes to a part that has exactly `offset` bytes."""
    return script(_APPEND, str(part), str(offset), stdin=data)


def was_moved(output: str) -> bool:
    """Say whether `append_command` found another size, and so added nothing."""
    return output.strip() == _MOVED


def hash_command(path: PurePosixPath) -> Command:
    """Build the command that prints the SHA-256 of a file."""
    return script(_HASH, str(path))


def publish_command(part: PurePosixPath, path: PurePosixPath) -> Command:
    """Build the command that gives a verified part its final name."""
    return script(_PUBLISH, str(part), str(path))


def discard_command(part: PurePosixPath) -> Command:
    """Build the command that removes a part that turned out wrong."""
    return Command(("rm", "-f", str(part)))
