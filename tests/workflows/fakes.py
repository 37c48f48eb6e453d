"""A pretended cluster: hosts with managed processes, a clock, a worker's answers, an API."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ggufcluster.adapters.remote import CommandResult
from ggufcluster.adapters.rpc import DeviceMemory, LinkSpeed, WorkerReport
from ggufcluster.core.chat_template import render
from ggufcluster.core.paths import paths_from_probe
from ggufcluster.core.units import GIB
from ggufcluster.errors import HostUnreachableError
from ggufcluster.testing import FakeRemote
from ggufcluster.workflows.seams import Seams

if TYPE_CHECKING:
    from ggufcluster.core.command import Command
    from ggufcluster.core.secret import Secret
    from ggufcluster.core.worker_address import SshWorker
    from ggufcluster.workflows.events import Event, Result, Workflow

DATA = Path(__file__).parents[1] / "data"
FINGERPRINT = "0123456789abcdef"
CALL = {"function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}


@dataclass
class Process:
    """A pretended managed process."""

    pid: int
    owner: str
    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    life: str = "alive"
    log: str = "a first line\na last line\n"

    def option(self, name: str) -> list[str]:
        """Return the comma-separated values of an option of its command line."""
        return self.words[self.words.index(name) + 1].split(",") if name in self.words else []


class Host(FakeRemote):
    """A host on which processes can be started, found and ended.

    Attributes:
        own_address: Address of the head on the way here.
        peer_address: Address of this host.
        processes: Every managed process by run folder.
        facts: Output of the probe of facts.
        reachable: Whether anything is answered at all.
        lost_ports: Ports that somebody takes just before a worker does.
    """

    def __init__(self, name: str, *, address: str = "10.20.20.2", home: str = "/home/w") -> None:
        super().__init__(name=name)
        self.own_address = "10.20.20.1"
        self.peer_address = address
        self.home = home
        self.processes: dict[str, Process] = {}
        self.facts = facts(name)
        self.reachable = True
        self.lost_ports: set[int] = set()
        self.listing = "Available devices:\n"
        self._answer_everything()

    def run(self, command: Command, *, timeout: float, check: bool = True) -> CommandResult:
        """Answer like a host, or not at all."""
        if not self.reachable:
            raise HostUnreachableError(self.name, reason="timed out")
        return super().run(command, timeout=timeout, check=check)

    def alive(self) -> list[str]:
        """Return the run folders of the processes that hold memory."""
        return [run for run, one in self.processes.items() if one.life in {"alive", "frozen"}]

    def started(self, program: str) -> list[Process]:
        """Return every process of a program that was ever started."""
        return [one for one in self.processes.values() if one.words[0].endswith(program)]

    def count(self, pattern: str) -> int:
        """Count the commands that ran whose text contains the pattern."""
        return sum(pattern in text for text in self.shown())

    def _answer_everything(self) -> None:
        kinds = ("cache", "state", "config", "data")
        self.on("XDG_CACHE_HOME", "".join(f"{self.home}/{kind}\n" for kind in kinds))
        self.on("say name", lambda _: CommandResult(0, self.facts, ""))
        self.on("life()", self._inspect)
        self.on("wait_gone()", self._stop)
        self.on(re.compile(r"for run in"), self._list)
        self.on("setsid sh -c", self._start)
        self.on(re.compile(r"^(tail|cat) .*/log"), self._log)
        self.on(re.compile(r"^stat -c %s"), lambda _: CommandResult(0, "100\n", ""))
        self.on(re.compile(r"^grep rchar"), "rchar: 5\n")
        self.on(re.compile(r"^ss "), "")
        self.on("--list-devices", lambda _: CommandResult(0, self.listing, ""))
        self.on("rmdir", self._remove)
        self.on("ggufcluster.adapters.template_child", self._render)

    def _render(self, command: Command) -> CommandResult:
        question = json.loads(command.stdin or b"")
        answers = render(question["template"], question["contexts"])
        return CommandResult(0, json.dumps([asdict(answer) for answer in answers]), "")

    def _start(self, command: Command) -> CommandResult:
        run, owner, *words = command.plain_argv()[4:]
        pid = 1000 + len(self.processes)
        variables, words = read_call(words)
        self.processes[run] = Process(pid, owner, words, variables)
        if words[0].endswith("llama-server"):
            self.processes[run].log = server_log(self.processes[run])
        elif words[0].endswith("rpc-server"):
            self._listen(self.processes[run])
        return CommandResult(0, f"{pid} 5 boot\n", "")

    def _listen(self, process: Process) -> None:
        (address,), (port,) = process.option("--host"), process.option("--port")
        if int(port) in self.lost_ports:
            process.life = "dead"
            process.log = f"error: cannot listen on {address}:{port}: Address already in use\n"
        else:
            process.log = f"ggufcluster: listening on {address}:{port}, build b\n{process.log}"

    def _inspect(self, command: Command) -> CommandResult:
        one = self.processes.get(command.plain_argv()[-1])
        return CommandResult(0, f"{one.life} {one.pid} 5\n" if one else "absent 0 0\n", "")

    def _stop(self, command: Command) -> CommandResult:
        one = self.processes.get(command.plain_argv()[-2])
        if one is None:
            return CommandResult(0, "absent\n", "")
        outcome = "ended" if one.life in {"alive", "frozen"} else "dead"
        one.life = "absent"
        return CommandResult(0, f"{outcome}\n", "")

    def _list(self, _command: Command) -> CommandResult:
        rows = [
            f"{run}\t{one.owner}\t{one.life} {one.pid} 5\n" for run, one in self.processes.items()
        ]
        return CommandResult(0, "".join(rows), "")

    def _log(self, command: Command) -> CommandResult:
        one = self.processes.get(command.plain_argv()[-1].removesuffix("/log"))
        return CommandResult(0, one.log, "") if one else CommandResult(1, "", "no such file")

    def _remove(self, command: Command) -> CommandResult:
        run, log = command.plain_argv()[4:]
        if run in self.processes and self.processes[run].life in {"alive", "frozen"}:
            return CommandResult(0, "occupied\n", "")
        self.files.setdefault(log, "archived")
        return CommandResult(0, "removed\n", "")


def read_call(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Read a call as ``env`` and ``sh`` do, down to the program that is left in the end.

    Returns:
        The variables that are set for the program, and the program with its arguments.
    """
    variables: dict[str, str] = {}
    while words and (words[0] == "env" or words[:3] == ["sh", "-c", 'exec "$@"']):
        if words[0] == "sh":
            words = words[4:]
            continue
        count = next((n for n, word in enumerate(words[1:]) if "=" not in word), len(words) - 1)
        variables |= dict(word.split("=", 1) for word in words[1 : count + 1])
        words = words[count + 1 :]
    assert words, "nothing is left to run"
    assert not words[0].startswith("-"), f"env has no option here: {words[0]}"
    return variables, words


def facts(name: str, *, changes: dict[str, str] | None = None) -> str:
    """Return the probe's output of a quiet machine; `changes` replaces sections."""
    sections = {
        "name": name,
        "user": "me",
        "id": f"machine-of-{name}",
        "memory": "MemTotal: 125829120 kB\nMemAvailable: 121000000 kB",
        "listening": "00000000:0016",
        "processes": "",
        "page": "4096",
        "gpu": "",
        "gpu_processes": "",
        "guards": "",
        "privilege": "none",
        "end": "",
    } | (changes or {})
    return "".join(f"@{key}\n{text}\n" for key, text in sections.items())


def server_log(process: Process) -> str:
    """Write the log of a llama-server that does exactly what its command line says."""
    devices = process.option("--device")
    counts = [int(count) for count in process.option("--tensor-split")]
    owners = [name for name, count in zip(devices, counts, strict=True) for _ in range(count)]
    lines = [
        f"load_tensors: layer {number:3d} assigned to device {name}, is_swa = 0"
        for number, name in enumerate(owners)
    ]
    lines += [
        f"load_tensors: RPC0[{endpoint}] model buffer size =     2.72 MiB"
        for endpoint in process.option("--rpc")
    ]
    return "\n".join(lines) + "\n"


@dataclass
class Clock:
    """A clock that moves only when somebody sleeps."""

    time: float = 100.0
    naps: list[Any] = field(default_factory=list)

    def __call__(self) -> float:
        """Return the time."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let time pass; each nap may do something first."""
        self.time += seconds
        if self.naps:
            self.naps.pop(0)()


@dataclass
class FakeApi:
    """An API whose answers are set beforehand; health goes through a list and stays at its end."""

    healths: list[str] = field(default_factory=lambda: ["loading", "ok"])
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def health(self) -> str:
        """Return the next state."""
        return self.healths.pop(0) if len(self.healths) > 1 else self.healths[0]

    def get(self, path: str) -> Any:
        """Return or raise what is set."""
        return self._answer(path)

    def post(self, path: str, body: dict[str, Any], *, timeout: float) -> Any:
        """Return or raise what is set."""
        return self._answer(path)

    def _answer(self, path: str) -> Any:
        self.asked.append(path)
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer


def good_api() -> FakeApi:
    """Return an API of a head that is well."""
    message = {"content": None, "tool_calls": [CALL]}
    return FakeApi(
        answers={
            "/v1/chat/completions": {"choices": [{"message": message}]},
            "/slots": [{"is_processing": True}, {"is_processing": False}],
            "/props": {"build_info": "b1-test"},
        }
    )


class World:
    """A head, two workers and everything between them.

    Attributes:
        head: This machine.
        hosts: Far machines by the host that a user writes.
        api: The head's API.
        clock: The clock of all.
        memory: Free and total bytes of each worker's device, by endpoint.
        unlistenable: Why the head cannot listen, by ``host:port``.
        trouble: Errors that probing or timing an endpoint raises, first to last.
    """

    def __init__(self, home: Path) -> None:
        self.head = Host("this machine", home=str(home))
        self.hosts = {
            "10.20.20.2": Host("me@10.20.20.2", address="10.20.20.2"),
            "10.20.20.3": Host("me@10.20.20.3", address="10.20.20.3"),
        }
        self.api = good_api()
        self.clock = Clock()
        self.memory: dict[str, tuple[int, int]] = {}
        self.trouble: dict[str, list[Exception]] = {}
        self.unlistenable: dict[str, OSError] = {}
        self.keys: list[Secret | None] = []
        kinds = ("cache", "state", "config", "data")
        self.paths = paths_from_probe("".join(f"{home}/{kind}\n" for kind in kinds))

    def seams(self) -> Seams:
        """Return the ways into this world."""
        return Seams(
            local=self.head,
            connect=self._connect,
            probe=self._probe,
            measure=self._measure,
            try_listen=self._try_listen,
            api=self._open_api,
            clock=self.clock,
            now=lambda: 1000.0 + self.clock.time,
            sleep=self.clock.sleep,
        )

    def everywhere(self) -> list[Host]:
        """Return all hosts."""
        return [self.head, *self.hosts.values()]

    def alive(self) -> list[str]:
        """Return the run folders of everything that runs anywhere."""
        return [run for host in self.everywhere() for run in host.alive()]

    def _connect(self, worker: SshWorker) -> Host:
        host = self.hosts.get(worker.host)
        if host is None or not host.reachable:
            raise HostUnreachableError(worker.host, reason="timed out")
        return host

    def _probe(self, endpoint: str, fingerprint: str, *, timeout: float) -> WorkerReport:
        self._raise("probe", endpoint)
        free, total = self.memory.get(endpoint, (100 * GIB, 120 * GIB))
        return WorkerReport((3, 6, 1), (DeviceMemory(free, total),))

    def _measure(self, endpoint: str, fingerprint: str, *, timeout: float) -> LinkSpeed:
        self._raise("measure", endpoint)
        return LinkSpeed(1e-4, 2.5e9)

    def _try_listen(self, host: str, port: int) -> None:
        if error := self.unlistenable.get(f"{host}:{port}"):
            raise error

    def _raise(self, what: str, endpoint: str) -> None:
        if errors := self.trouble.get(f"{what} {endpoint}"):
            raise errors.pop(0)

    def _open_api(self, _root: str, key: Secret | None) -> FakeApi:
        self.keys.append(key)
        return self.api


def run_folder(host: str, name: str, *, cluster: str = "c") -> str:
    """Return the run folder of a part of a cluster below some home."""
    return str(PurePosixPath(host) / "state/ggufcluster/run" / cluster / name)


def collect(workflow: Workflow[Result]) -> tuple[list[Event], Result]:
    """Run a workflow to its end; return its events and its result."""
    events: list[Event] = []
    while True:
        try:
            events.append(next(workflow))
        except StopIteration as end:
            return events, end.value
