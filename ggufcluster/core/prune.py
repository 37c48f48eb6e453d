"""What engines of other versions left in the cache of a host, and what of it may go.

Everything that counts here is named after a fingerprint: engines, build folders and build logs, and
patched source trees. Nothing else in the cache is looked at, and models lie elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.command import Command, script

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"([0-9a-f]{16})-[\w.-]+")
# A copy on its way; one without an owner is swept by the next deployment.
_PARTIAL = ".partial-"

# What a process runs, or has loaded as a library, is in its maps, by the path without links.
_SURVEY = """
cache=$(readlink -f "$1") && cd "$cache" 2>/dev/null || exit 0
echo "@cache $cache"
[ ! -e builds/lock ] || { exec 9>>builds/lock; flock -n 9 || echo "@building"; exec 9>&-; }
for path in engines/* builds/* sources/*; do
  [ ! -e "$path" ] || printf '@entry %s %s\\n' "$(du -s -B1 -- "$path" | cut -f1)" "$path"
done
grep -hsF "$cache/engines/" /proc/[0-9]*/maps | sed 's/^/@map /' | sort -u
exit 0
"""

# The lock keeps builds away. Renamed first: nobody finds half of it, and a process that began to
# run from it meanwhile keeps its files.
_REMOVE = """
cd "$1" || exit 1
[ ! -e builds/lock ] || { exec 9>>builds/lock; flock -n 9 || { echo busy; exit 0; }; }
[ -e "$2" ] || { echo removed; exit 0; }
gone="${2%/*}/.partial-removed-${2##*/}-$$"
mv -T -- "$2" "$gone" && rm -rf -- "$gone" && echo removed
"""


class Kind(Enum):
    """What lies in the cache, by the folder that it lies in."""

    ENGINE = "engines"
    BUILD = "builds"
    SOURCE = "sources"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder of the cache; `size` is what it takes on disk, in bytes."""

    kind: Kind
    name: str
    size: int

    @property
    def path(self) -> str:
        """Where it lies in the cache."""
        return f"{self.kind.value}/{self.name}"

    @property
    def fingerprint(self) -> str:
        """The engine version that it belongs to; empty if it is named otherwise."""
        found = _NAME.fullmatch(self.name)
        return found[1] if found and _PARTIAL not in self.name else ""

    @property
    def build_id(self) -> str:
        """The engine that it belongs to, if it is none of the sources."""
        return self.name.removesuffix(".log") if self.kind is Kind.BUILD else self.name


@dataclass(frozen=True, slots=True)
class CacheSurvey:
    """A cache as found.

    Attributes:
        cache: Its folder, without links on the way.
        entries: What lies in it.
        used: Build ids of the engines that processes run from.
        building: Whether a build is at work.
    """

    cache: PurePosixPath
    entries: tuple[Entry, ...] = ()
    used: frozenset[str] = frozenset()
    building: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """Something of another version that stays, and why."""

    entry: Entry
    reason: str


def survey_command(cache: PurePosixPath) -> Command:
    """Build the command whose output `parse_survey` reads; it changes nothing."""
    return script(_SURVEY, str(cache))


def remove_command(cache: PurePosixPath, entry: Entry) -> Command:
    """Build the command that removes an entry; prints ``removed``, or ``busy`` during a build."""
    return script(_REMOVE, str(cache), entry.path)


def parse_survey(cache: PurePosixPath, output: str) -> CacheSurvey:
    """Read what `survey_command` printed; other lines, as of a login script, are left out."""
    lines = output.splitlines()
    found = [line.removeprefix("@cache ") for line in lines if line.startswith("@cache ")]
    place = PurePosixPath(found[0]) if found else cache
    engines = f"{place}/engines/"
    maps = [line.partition(engines)[2] for line in lines if line.startswith("@map ")]
    return CacheSurvey(
        cache=place,
        entries=tuple(_entries(lines)),
        used=frozenset(rest.partition("/")[0] for rest in maps),
        building="@building" in lines,
    )


def _entries(lines: list[str]) -> Iterator[Entry]:
    for line in lines:
        if not line.startswith("@entry "):
            continue
        size, _, path = line.removeprefix("@entry ").partition(" ")
        folder, _, name = path.partition("/")
        entry = Entry(Kind(folder), name, int(size))
        if entry.fingerprint:
            yield entry


def choose(
    survey: CacheSurvey, *, fingerprints: frozenset[str], recorded: frozenset[str] = frozenset()
) -> tuple[tuple[Entry, ...], tuple[Kept, ...]]:
    """Decide what goes and what of other versions stays.

    Args:
        survey: What is there.
        fingerprints: Versions that stay without a word.
        recorded: Build ids that the record of a cluster names.
    """
    old = [entry for entry in survey.entries if entry.fingerprint not in fingerprints]
    reasons = {entry: _reason(entry, survey, recorded) for entry in old}
    gone = tuple(entry for entry, reason in reasons.items() if not reason)
    return gone, tuple(Kept(entry, reason) for entry, reason in reasons.items() if reason)


def _reason(entry: Entry, survey: CacheSurvey, recorded: frozenset[str]) -> str:
    if entry.kind is not Kind.SOURCE and entry.build_id in survey.used:
        return "a process runs from it"
    if entry.kind is not Kind.SOURCE and entry.build_id in recorded:
        return "the record of the cluster names it"
    if entry.kind is not Kind.ENGINE and survey.building:
        return "a build is at work"
    return ""
