"""The shell scripts that build, publish and inspect an engine on any host.

They need a POSIX shell and what every Linux host with util-linux and coreutils has, so that a
worker needs nothing of ours. Lines for us start with `MARK`; all others are the tools' own output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.build_log import NINJA_STATUS
from ggufcluster.core.command import Command, script
from ggufcluster.core.engine import RECORD_NAME, Engine, read_engine
from ggufcluster.core.recipe import TARGETS

if TYPE_CHECKING:
    from pathlib import PurePosixPath

MARK = "@@ggufcluster "

# The lock's descriptor is inherited on purpose: while any compiler of a broken-off build lives,
# the next build waits.
_BUILD = """
cache=$1 id=$2 source=$3 cmake=$4 builder=$5 jobs=$6 head=$7
shift 7
say() { printf '%s%s\\n' '@@ggufcluster ' "$*"; }
builds=$cache/builds engines=$cache/engines
build=$builds/$id/${builder##*/} log=$builds/$id.log stage=$cache/engines/.partial-build-$id-$$
mkdir -p "$build" "$engines" || { say "failed prepare"; exit 1; }
command -v flock >/dev/null || { say "missing flock"; exit 1; }

exec 9>>"$builds/lock"
flock -n 9 || {
  say "waiting $(cat "$builds/lock")"
  until flock -w 30 9; do say "waiting $(cat "$builds/lock")"; done
}
printf 'process %s (%s)' "$$" "$id" >"$builds/lock"
[ ! -e "$engines/$id" ] || { say published; exit 0; }
rm -rf "$engines"/.partial-build-*

step() {
  name=$1; shift
  say "step $name"
  { "$@" 2>&1; echo "$?" >"$builds/$id/exit"; } | tee -a "$log"
  read -r code <"$builds/$id/exit"
  [ "$code" = 0 ] || { say "failed $name"; exit 1; }
}
: >"$log"
export LC_ALL=C NINJA_STATUS='@NINJA_STATUS@' GIT_CEILING_DIRECTORIES="${source%/*}"
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
# Seen through this link, a source has the same relative path in every build: ccache then knows
# files again that another fingerprint left as they were.
ln -sfn "$source" "$builds/$id/source" || { say "failed prepare"; exit 1; }
export CCACHE_BASEDIR="$builds/$id"
step configure "$cmake" -S "$builds/$id/source" -B "$build" "$@"
step compile "$builder" -C "$build" -j "$jobs" @TARGETS@

flush() { sync -- "$@" 2>/dev/null || sync; }
publish() {
  mkdir -p "$stage/bin" && cd "$build/bin" &&
  cp -p @TARGETS@ "$stage/bin/" && cp -Pp lib*.so* "$stage/bin/" &&
  cd "$stage/bin" || return 1
  separator='' # between, not after: JSON
  { printf '%s' "$head"
    for file in *; do
      printf '%s  {"path": "%s", ' "$separator" "$file"
      if [ -L "$file" ]; then printf '"link": "%s"}' "$(readlink "$file")"
      else
        sum=$(sha256sum "$file") || return 1
        printf '"size": %s, "sha256": "%s"}' "$(stat -c %s "$file")" "${sum%% *}"
      fi
      separator=',
'
    done
    printf '\\n ]\\n}\\n'
  } >"$stage/@RECORD@" &&
  flush "$stage"/bin/* "$stage"/* "$stage" &&
  mv -T "$stage" "$engines/$id" && flush "$engines"
}
step publish publish
rm -rf "$builds/$id"
say published
"""

_INSPECT = """
cd "$1" 2>/dev/null && cat @RECORD@ 2>/dev/null || exit 0
printf '\\n@@sizes\\n'
cd bin && find . -maxdepth 1 -type f -printf '%s %f\\n'
"""

# Run time linking of everything, without running anything.
_MISSING = """
cd "$1/bin" || exit 1
for file in *; do
  [ -L "$file" ] || ldd "$file" 2>&1 | sed -n 's/^[[:space:]]*\\(.*not found.*\\)/\\1/p'
done | sort -u
"""

# Renamed first: a process that runs from it keeps its files.
_REMOVE = """
[ -e "$1" ] || exit 0
gone="${1%/*}/.partial-removed-${1##*/}-$$"
mv -T "$1" "$gone" && rm -rf "$gone"
"""

_UNPACK = """
[ ! -e "$2" ] || { rm -f "$1"; exit 0; }
partial="${2%/*}/.partial-source-${2##*/}-$$"
mkdir -p "$partial" && tar -xzf "$1" -C "$partial" && mv -T "$partial" "$2" && rm -f "$1" ||
  { rm -rf "$partial"; [ -e "$2" ]; }
"""

# Folders named after a process that no longer lives were left by an interruption.
_SWEEP = """
cd "$1" 2>/dev/null || exit 0
for old in .partial-*; do
  case "${old##*-}" in ''|*[!0-9]*) continue ;; esac
  [ -d "/proc/${old##*-}" ] || rm -rf "$old"
done
# Copies bear no process of this host: one that is a day old has no owner.
find . -maxdepth 1 -type d -name '*.partial-*' -mtime +0 -exec rm -rf {} +
exit 0
"""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Everything that the build script is told.

    Attributes:
        cache: ggufcluster's cache folder on the host that builds.
        build_id: Name of the engine.
        source: The prepared tree on that host.
        cmake: Path of CMake there.
        builder: Path of ninja or make there.
        jobs: Compilers to run at a time.
        cmake_arguments: Besides source and build folder.
        record: Head of build.json, see `record_head`.
    """

    cache: PurePosixPath
    build_id: str
    source: PurePosixPath
    cmake: str
    builder: str
    jobs: int
    cmake_arguments: tuple[str, ...]
    record: str

    @property
    def engine(self) -> PurePosixPath:
        """Where the engine is published."""
        return self.cache / "engines" / self.build_id

    @property
    def log(self) -> PurePosixPath:
        """Where the tools' output is kept."""
        return self.cache / "builds" / f"{self.build_id}.log"

    def command(self) -> Command:
        """Return the call that builds and publishes; it resumes what an earlier one left."""
        places = (self.cache, self.build_id, self.source, self.cmake, self.builder, self.jobs)
        return script(_filled(_BUILD), *map(str, places), self.record, *self.cmake_arguments)


def inspect_command(engine: PurePosixPath) -> Command:
    """Build the command whose output `parse_inspection` reads; it never fails."""
    return script(_filled(_INSPECT), str(engine))


def parse_inspection(engine: PurePosixPath, output: str) -> Engine | None:
    """Return the engine that was inspected; None if absent or damaged."""
    record, _, sizes = output.partition("\n@@sizes\n")
    return read_engine(engine, record, sizes)


def missing_libraries_command(engine: PurePosixPath) -> Command:
    """Build the command that prints what the loader would not find, one a line."""
    return script(_MISSING, str(engine))


def remove_command(folder: PurePosixPath) -> Command:
    """Build the command that takes a folder away at once."""
    return script(_REMOVE, str(folder))


def unpack_command(archive: PurePosixPath, target: PurePosixPath) -> Command:
    """Build the command that unpacks a tar.gz to a folder by rename and removes the archive."""
    return script(_UNPACK, str(archive), str(target))


def sweep_command(folder: PurePosixPath) -> Command:
    """Build the command that removes what interrupted commands of ours left in a folder."""
    return script(_SWEEP, str(folder))


def marked(line: str) -> tuple[str, str] | None:
    """Split a line for us into its word and the rest; None if it is a tool's."""
    if not line.startswith(MARK):
        return None
    word, _, rest = line.removeprefix(MARK).partition(" ")
    return word, rest


def _filled(text: str) -> str:
    values = {"NINJA_STATUS": NINJA_STATUS, "TARGETS": " ".join(TARGETS), "RECORD": RECORD_NAME}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
