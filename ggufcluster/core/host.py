"""What is learnt of a host before anything starts there: one probe script and its parser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.command import Command, script
from ggufcluster.core.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Mapping

# Somebody else's process is worth naming when it holds this much, or a twelfth of all memory.
_MUCH = 4 * GIB
_MUCH_SHARE = 12

_PROBE = r"""
say() { printf '@%s\n' "$1"; }
say name; uname -n
say user; id -un
say id; cat /etc/machine-id 2>/dev/null || uname -n
say memory; grep -E '^(MemTotal|MemAvailable):' /proc/meminfo
say listening; cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk '$4 == "0A" { print $2 }'
least=$((1073741824 / $(getconf PAGESIZE)))
say processes; for stat in /proc/[0-9]*/statm; do
  read -r _ pages _ < "$stat" 2>/dev/null || continue
  pid=${stat#/proc/}; pid=${pid%/statm}
  [ "$pages" -gt "$least" ] && printf '%s %s %s\n' "$pid" "$pages" "$(cat "/proc/$pid/comm")"
done 2>/dev/null
say page; getconf PAGESIZE
say gpu; nvidia-smi --query-gpu=name,memory.total,memory.used --format=csv,noheader,nounits \
  2>/dev/null
say gpu_processes; nvidia-smi --query-compute-apps=pid,used_memory,process_name \
  --format=csv,noheader,nounits 2>/dev/null
say guards; for name in /proc/[0-9]*/comm; do
  read -r comm < "$name" && [ "$comm" = earlyoom ] && echo "$comm"
done 2>/dev/null
say privilege; if [ "$(id -u)" = 0 ]; then echo root; elif sudo -n true 2>/dev/null; then
  echo sudo; else echo none; fi
say links; ip -o -4 addr show 2>/dev/null | while read -r _ port _ address _; do
  echo "${address%/*} $(cat "/sys/class/net/${port%%@*}/speed" 2>/dev/null)"
done
say end
"""

_DROP = r"""
sync
if [ "$(id -u)" = 0 ]; then echo 3 > /proc/sys/vm/drop_caches
else echo 3 | sudo -n tee /proc/sys/vm/drop_caches > /dev/null; fi
"""


@dataclass(frozen=True, slots=True)
class BigProcess:
    """A process that holds much memory, in bytes; `memory` may be unknown (0) on a GPU."""

    pid: int
    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host as found.

    Attributes:
        name: Its own name.
        user: The user that commands run as.
        machine_id: Tells machines apart whatever they are called.
        memory_total: Bytes.
        memory_available: Bytes that can be had without swapping.
        listening: Ports on which something listens, on any address.
        processes: Processes with more than 1 GiB of memory.
        gpus: Names of the GPUs that the driver shows.
        gpu_memory: Free and total bytes of each, None where it has no memory of its own.
        guards: Services that end big processes when memory gets low.
        may_drop_caches: Whether the page cache can be freed without a password.
        links: Bits per second of the network port of each address, as far as the system knows.
    """

    name: str
    user: str
    machine_id: str
    memory_total: int
    memory_available: int
    listening: frozenset[int]
    processes: tuple[BigProcess, ...]
    gpus: tuple[str, ...]
    gpu_memory: tuple[tuple[int, int] | None, ...]
    guards: tuple[str, ...]
    may_drop_caches: bool
    links: Mapping[str, int]

    @property
    def unified(self) -> bool:
        """Whether a GPU computes in the system's memory."""
        return None in self.gpu_memory

    def memory_hogs(self, *, ours: frozenset[int]) -> tuple[BigProcess, ...]:
        """Return the processes of others that hold much memory, biggest first."""
        least = min(_MUCH, self.memory_total // _MUCH_SHARE)
        # Unknown memory on a GPU may be much.
        big = (p for p in self.processes if p.memory >= least or not p.memory)
        hogs = [process for process in big if process.pid not in ours]
        return tuple(sorted(hogs, key=lambda process: -process.memory))


def facts_command() -> Command:
    """Build the probe whose output `parse_facts` reads; it needs nothing but a POSIX shell."""
    return script(_PROBE)


def drop_caches_command() -> Command:
    """Build the command that frees the page cache."""
    return script(_DROP)


def parse_facts(output: str) -> HostFacts:
    """Read the output of `facts_command`."""
    parts = _sections(output)
    memory = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in parts["memory"]}
    page = int(parts["page"][0])
    return HostFacts(
        name=parts["name"][0],
        user=parts["user"][0],
        machine_id=parts["id"][0],
        memory_total=memory["MemTotal"],
        memory_available=memory["MemAvailable"],
        listening=frozenset(int(line.rpartition(":")[2], 16) for line in parts["listening"]),
        processes=_processes(parts["processes"], page) + _gpu_processes(parts["gpu_processes"]),
        gpus=tuple(row[0] for row in _rows(parts["gpu"])),
        gpu_memory=tuple(_gpu_memory(*row[1:]) for row in _rows(parts["gpu"])),
        guards=tuple(sorted(set(parts["guards"]))),
        may_drop_caches=parts["privilege"][0] != "none",
        links=dict(_link(line) for line in parts.get("links", []) if len(line.split()) == 2),
    )


def free_port(preferred: int, taken: frozenset[int], *, tries: int = 100) -> int | None:
    """Return the first port from `preferred` upwards that nobody listens on."""
    candidates = range(preferred, min(preferred + tries, 65536))
    return next((port for port in candidates if port not in taken), None)


def _sections(output: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    name = ""
    for line in output.splitlines():
        if line.startswith("@"):
            name = line[1:]
            sections[name] = []
        elif line.strip() and name:
            sections[name].append(line.strip())
    if "end" not in sections:
        raise ValueError(f"the host probe broke off: {output[-200:]!r}")
    return sections


def _processes(lines: list[str], page: int) -> tuple[BigProcess, ...]:
    # One that ended while it was looked at has no name.
    rows = (line.split(None, 2) for line in lines if len(line.split(None, 2)) == 3)
    return tuple(BigProcess(int(pid), name, int(pages) * page) for pid, pages, name in rows)


def _gpu_processes(lines: list[str]) -> tuple[BigProcess, ...]:
    # A GB10 shows "[N/A]" for memory: it has none apart from the system's.
    return tuple(
        BigProcess(int(pid), name, int(used) << 20 if used.isdigit() else 0)
        for pid, used, name in _rows(lines)
        if pid.isdigit()
    )


def _gpu_memory(total: str, used: str) -> tuple[int, int] | None:
    # A GB10 shows "[N/A]" for both.
    if not (total.isdigit() and used.isdigit()):
        return None
    return (int(total) - int(used)) * MIB, int(total) * MIB


def _link(line: str) -> tuple[str, int]:
    address, speed = line.split()
    return address, int(speed) * 1_000_000 if speed.isdigit() else 0


def _rows(lines: list[str]) -> list[list[str]]:
    """Split nvidia-smi's lines of three values; it complains on stdout too."""
    rows = ([word.strip() for word in line.split(",", 2)] for line in lines)
    return [row for row in rows if len(row) == 3]
