"""Start, inspect and stop one long-running process on a host, as shell commands and parsers.

A managed process lives in a run folder of its own on its host::

    <run folder>/pid     "<pid> <start time in clock ticks> <boot id>", written by the process
    <run folder>/log     stdout and stderr together
    <run folder>/owner   who started it, one line

The process writes its own pid file before it becomes the real program, so there is no moment at
which it runs unknown. A pid alone proves nothing after a restart of the host or a wrap-around of
pids; the start time and the boot id tell whether it is still the same process.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ggufcluster.core.command import Command, script

if TYPE_CHECKING:
    from pathlib import PurePosixPath

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

# Word 22 of /proc/PID/stat is the start time; the name in brackets is "sh" at this moment.
_START = f"""
set -eu
run=$1; owner=$2; shift 2
umask 077
mkdir -p "$run"
rm -f "$run/pid"
printf '%s\\n' "$owner" > "$run/owner"
export GGUFCLUSTER_RUN="$run"
setsid sh -c '
  printf "%s %s %s\\n" "$$" "$(cut -d" " -f22 "/proc/$$/stat")" "$(cat {_BOOT_ID})" \\
    > "$GGUFCLUSTER_RUN/pid.new" &&
  mv "$GGUFCLUSTER_RUN/pid.new" "$GGUFCLUSTER_RUN/pid" || exit 1
  trap "" PIPE
  exec "$@"
' sh "$@" < /dev/null >> "$run/log" 2>&1 &
i=0
while [ ! -s "$run/pid" ] && [ -d "/proc/$!" ] && [ $i -lt 1200 ]; do
  sleep 0.05; i=$((i + 1))
done
cat "$run/pid"
"""

# Sets state, pid and start for the run folder $1. A zombie counts as dead: it holds nothing.
_LIFE = f"""
life() {{
  state=absent; pid=0; start=0
  [ -s "$1/pid" ] || return 0
  read -r pid start boot < "$1/pid"
  state=dead
  case "$pid" in ''|*[!0-9]*) pid=0; return 0 ;; esac
  [ "$boot" = "$(cat {_BOOT_ID})" ] || return 0
  set -- $(sed 's/^.*) //' "/proc/$pid/stat" 2>/dev/null)
  [ "${{20:-}}" = "$start" ] || return 0
  case "$1" in Z|X) ;; T|t) state=frozen ;; *) state=alive ;; esac
}}
"""

_INSPECT = _LIFE + 'life "$1"; echo "$state $pid $start"\n'

# A frozen process is woken after TERM, or it could never act on it.
_STOP = (
    _LIFE
    + """
wait_gone() {
  i=0
  while [ $i -lt "$2" ]; do
    life "$1"
    case "$state" in alive|frozen) sleep 0.1; i=$((i + 1)) ;; *) return 0 ;; esac
  done
  return 1
}
life "$1"
result=$state
case "$state" in alive|frozen)
  kill -TERM "$pid"; kill -CONT "$pid"
  result=ended
  wait_gone "$1" $(($2 * 10)) || {
    kill -KILL "$pid"
    result=killed
    wait_gone "$1" 100 || result=stuck
  } ;;
esac
[ "$result" = stuck ] || rm -f "$1/pid"
echo "$result"
"""
)

_LIST = (
    _LIFE
    + """
for run in "$1"/*/*; do
  [ -s "$run/pid" ] || continue
  life "$run"
  printf '%s\\t%s\\t%s\\n' "$run" "$(cat "$run/owner" 2>/dev/null)" "$state $pid $start"
done
"""
)


# Renamed first: a process that is just being started then fails to write its pid file and ends. One
# that wrote it in time is not forgotten: the folder goes back.
_REMOVE = """
[ -d "$1" ] || { echo removed; exit 0; }
mv "$1" "$1.gone"
if [ -e "$1.gone/pid" ]; then mv "$1.gone" "$1"; echo occupied; exit 0; fi
mv -f "$1.gone/log" "$2" 2>/dev/null
rm -rf "$1.gone"
rmdir "$(dirname "$1")" 2>/dev/null
echo removed
"""


class Life(Enum):
    """What became of a managed process."""

    ABSENT = "absent"
    ALIVE = "alive"
    FROZEN = "frozen"
    DEAD = "dead"

    @property
    def holds_resources(self) -> bool:
        """Whether memory and ports may still be held."""
        return self in (Life.ALIVE, Life.FROZEN)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A managed process as found; `pid` is 0 when absent."""

    life: Life
    pid: int = 0


@dataclass(frozen=True, slots=True)
class OwnedProcess:
    """A managed process together with its run folder and who started it."""

    run: str
    owner: str
    state: ProcessState


def start_command(run: PurePosixPath, owner: str, program: Command) -> Command:
    """Build the command that starts `program` detached and prints its pid line.

    The program runs in its own session, with stdin from /dev/null and SIGPIPE ignored, which
    survives exec: llama.cpp's RPC sends would otherwise end it when a peer goes away.
    """
    return Command(("sh", "-c", _START, "sh", str(run), owner, *program.with_variables()))


def inspect_command(run: PurePosixPath) -> Command:
    """Build the command whose output `parse_state` reads."""
    return script(_INSPECT, str(run))


def stop_command(run: PurePosixPath, *, grace_seconds: int) -> Command:
    """Build the command that ends the process: TERM, then KILL after the grace time."""
    return script(_STOP, str(run), str(grace_seconds))


def remove_command(run: PurePosixPath, *, keep_log_as: PurePosixPath) -> Command:
    """Build the command that removes a run folder and keeps its log under another name.

    It prints ``removed``, or ``occupied`` if a pid file is there.
    """
    return script(_REMOVE, str(run), str(keep_log_as))


def list_command(runs: PurePosixPath) -> Command:
    """Build the command that lists every managed process under `runs`/*/*."""
    return script(_LIST, str(runs))


def parse_pid(output: str) -> int:
    """Return the pid that `start_command` printed."""
    return int(_last_line(output).split()[0])


def parse_state(output: str) -> ProcessState:
    """Read the output of `inspect_command`: its last line, a login script may print before it."""
    words = _last_line(output).split()
    if not words or words[0] == Life.ABSENT.value:
        return ProcessState(Life.ABSENT)
    return ProcessState(Life(words[0]), int(words[1]))


def parse_stop(output: str) -> str:
    """Return how stopping went: absent, dead, ended, killed or stuck."""
    return _last_line(output) or Life.ABSENT.value


def parse_list(output: str) -> tuple[OwnedProcess, ...]:
    """Read the output of `list_command`."""
    rows = (line.split("\t") for line in output.splitlines() if line.count("\t") == 2)
    return tuple(OwnedProcess(run, owner, parse_state(state)) for run, owner, state in rows)


def _last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2].strip()
