"""Clusters over real SSH: three hosts, a real head, real workers, the command line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.engine import PROGRAM_VARIABLES
from tests.waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from ggufcluster.core.engine import Engine
    from tests.hosts.netns import Hosts

pytestmark = pytest.mark.engine

_WORKERS = ("--worker", "10.20.20.2", "--worker", "10.20.20.3")
_SMALL = {"GGUFCLUSTER_CTX": "2048", "GGUFCLUSTER_UBATCH": "256"}
_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tool_call.py"


class Head:
    """Runs ``ggufcluster`` on one of the hosts."""

    def __init__(self, hosts: Hosts, number: int = 1) -> None:
        self.hosts = hosts
        self.number = number

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return self.hosts.run_in(self.number, self._argv(words), env=_SMALL | env, timeout=240)

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start a command in the background."""
        return self.hosts.start_in(self.number, self._argv(words), env=_SMALL | env)

    def _argv(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "ggufcluster", *words]


@pytest.fixture(scope="module")
def engine_on_head(hosts: Hosts, engine: Engine) -> Iterator[None]:
    """The engine in the cache of host 1, as if it had been built there; workers have none."""
    target = hosts[1].folder / "cache" / "ggufcluster" / "engines" / engine.build_id
    shutil.copytree(engine.folder, target, symlinks=True)
    yield
    for number in (1, 2, 3):
        shutil.rmtree(hosts[number].folder / "cache", ignore_errors=True)


@pytest.fixture
def head(hosts: Hosts, engine_on_head: None) -> Iterator[Head]:
    """Host 1 as head; afterwards nothing may be left on any host."""
    made = Head(hosts)
    yield made
    made.run("down")
    wait_for(lambda: not any(hosts.processes(number) for number in (1, 2, 3)))


def test_up_chat_status_logs_down(head: Head, hosts: Hosts, toys: dict[str, Path]) -> None:
    """Over two SSH workers a tool call is answered, and afterwards no process and port is left."""
    up = head.run("up", *_WORKERS, "--model", str(toys["recite"]), "--json")
    assert up.returncode == 0, up.stderr
    record = json.loads(up.stdout)

    chat = hosts.run_in(1, [sys.executable, str(_EXAMPLE), record["base_url"]])
    status = head.run("status")
    listening = [hosts.listening(number) for number in (1, 2, 3)]
    given = [_variables(hosts, number) for number in (1, 2, 3)]
    logs = head.run("logs", "10.20.20.3")
    down = head.run("down")

    assert 'tool call:  get_weather({"city":' in chat.stdout
    assert "answer:     It is sunny in Paris" in chat.stdout
    assert status.returncode == 0, status.stderr
    assert listening == [{"127.0.0.1:8080"}, {"10.20.20.2:50052"}, {"10.20.20.3:50052"}]
    assert given == [PROGRAM_VARIABLES] * 3
    assert [worker["rate"] > 0 for worker in record["workers"]] == [True, True]
    assert [share["layers"] for share in record["shares"]] == [4, 4]
    assert "listening on 10.20.20.3:50052" in logs.stdout
    assert down.returncode == 0, down.stderr
    _nothing_left(hosts)


def test_second_up_copies_nothing(head: Head, hosts: Hosts, toys: dict[str, Path]) -> None:
    """The engine that the first `up` copied is used by the second as it is."""
    words = ("up", "--worker", "10.20.20.2", "--model", str(toys["recite"]))
    assert head.run(*words).returncode == 0
    assert head.run("down").returncode == 0
    engines = hosts[2].folder / "cache" / "ggufcluster" / "engines"
    before = {path: path.stat().st_mtime_ns for path in engines.rglob("*")}

    again = head.run(*words)

    assert again.returncode == 0, again.stderr
    assert "copying" not in again.stderr
    assert {path: path.stat().st_mtime_ns for path in engines.rglob("*")} == before
    assert before


def test_taken_port_moves_the_worker(head: Head, hosts: Hosts, toys: dict[str, Path]) -> None:
    """If 50052 is taken on a worker the next free port is used and shown."""
    serve = [sys.executable, "-m", "http.server", "50052", "--bind", "10.20.20.2"]
    holder = hosts.start_in(2, serve)
    try:
        wait_for(lambda: "10.20.20.2:50052" in hosts.listening(2))
        up = head.run("up", "--worker", "10.20.20.2", "--model", str(toys["recite"]))
    finally:
        holder.kill()
        holder.communicate()

    assert up.returncode == 0, up.stderr
    assert "10.20.20.2:50053" in up.stderr


def test_head_as_its_own_worker_is_refused(head: Head, toys: dict[str, Path]) -> None:
    """The head's own address is no worker over SSH; the message says what to write instead."""
    up = head.run("up", "--worker", "10.20.20.1", "--model", str(toys["recite"]))

    assert up.returncode == 30
    assert "local" in up.stderr


@pytest.mark.parametrize(
    ("worker", "code", "words"),
    [
        ("10.20.20.99", 20, "cannot reach"),
        ("10.20.20.2:2222", 20, "cannot reach"),
        ("", 30, "empty"),
    ],
)
def test_unreachable_worker_is_named(
    head: Head, hosts: Hosts, toys: dict[str, Path], worker: str, code: int, words: str
) -> None:
    """A host that does not answer is named with its own exit code, and nothing was started."""
    up = head.run("up", "--worker", worker, "--model", str(toys["recite"]))

    assert up.returncode == code, up.stderr
    assert words in up.stderr
    _nothing_left(hosts)


def test_same_worker_twice_is_refused(head: Head, toys: dict[str, Path]) -> None:
    """The same host by two spellings is refused before anything starts."""
    up = head.run("up", "-w", "10.20.20.2", "-w", "root@10.20.20.2", "--model", str(toys["recite"]))

    assert up.returncode == 30
    assert "same machine" in up.stderr


def test_unknown_host_key_is_refused_until_accepted(
    head: Head, hosts: Hosts, toys: dict[str, Path]
) -> None:
    """An unknown key stops `up` with its fingerprint; the option adds it and goes on."""
    words = ("up", "--worker", "10.20.20.2", "--model", str(toys["recite"]))
    with _replaced(hosts[1].home / ".ssh" / "known_hosts", ""):
        refused = head.run(*words)
        accepted = head.run(*words, "--accept-new-host-keys")
        head.run("down")

    assert refused.returncode == 22
    assert "SHA256:" in refused.stderr
    assert accepted.returncode == 0, accepted.stderr


def test_wrong_key_is_refused(head: Head, hosts: Hosts, toys: dict[str, Path]) -> None:
    """A host that does not take our key is named together with the user that was tried."""
    with _replaced(hosts[2].home / ".ssh" / "authorized_keys", ""):
        up = head.run("up", "--worker", "10.20.20.2", "--model", str(toys["recite"]))

    assert up.returncode == 21
    assert "root" in up.stderr
    assert "ssh-copy-id" in up.stderr


def test_worker_of_another_head_is_left_alone(
    head: Head, hosts: Hosts, toys: dict[str, Path], engine: Engine
) -> None:
    """A worker that serves another head is neither shared nor ended, and its head is named."""
    words = ("up", "--worker", "10.20.20.2", "--model", str(toys["recite"]))
    assert head.run(*words).returncode == 0
    place = Path("cache") / "ggufcluster" / "engines" / engine.build_id
    if not (hosts[3].folder / place).exists():
        shutil.copytree(hosts[1].folder / place, hosts[3].folder / place, symlinks=True)

    other = Head(hosts, 3).run(*words)
    status = head.run("status")

    assert other.returncode == 32, other.stderr
    assert "in use by" in other.stderr
    assert status.returncode == 0


def test_full_disk_while_copying_leaves_nothing(
    head: Head, hosts: Hosts, toys: dict[str, Path]
) -> None:
    """A worker without room for the engine is named with both sizes, and keeps nothing of it."""
    cache = str(hosts[2].folder / "cache")
    shutil.rmtree(cache, ignore_errors=True)
    Path(cache).mkdir()
    small = ("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", cache)
    hosts.in_mounts_of(2, small)
    try:
        up = head.run("up", "--worker", "10.20.20.2", "--model", str(toys["recite"]))
        left = hosts.in_mounts_of(2, ("find", cache, "-type", "f"))
    finally:
        hosts.in_mounts_of(2, ("umount", cache))

    assert up.returncode == 24, up.stderr
    assert "10.20.20.2" in up.stderr
    assert left == ""
    _nothing_left(hosts)


def test_killed_worker_during_load_is_named(
    head: Head, hosts: Hosts, toys: dict[str, Path]
) -> None:
    """A worker that dies while the head starts is named, and everything else is ended."""
    for _ in range(5):
        up = head.start("up", *_WORKERS, "--model", str(toys["recite"]))
        wait_for(partial(_listens_or_ended, hosts, up), what="the second worker")
        _kill_rpc_server(hosts, 3)
        output, _ = up.communicate(timeout=PATIENCE)
        if up.returncode != 0:
            break
        head.run("down")  # it was up before the worker was killed, which shows nothing

    assert up.returncode in {33, 51}, output
    assert "10.20.20.3" in output
    _nothing_left(hosts)


def test_pulled_cable_is_no_excuse_to_forget(
    head: Head, hosts: Hosts, toys: dict[str, Path]
) -> None:
    """With a worker out of reach `down` says so and keeps the record; later it finishes."""
    assert head.run("up", *_WORKERS, "--model", str(toys["recite"])).returncode == 0
    config = hosts[1].home / ".ssh" / "config"
    hosts.link(3).down()
    try:
        with _replaced(config, f"{config.read_text()}  ConnectTimeout 3\n"):
            status = head.run("status")
            cut = head.run("down")
    finally:
        hosts.link(3).up()
    again = head.run("down")

    assert status.returncode == 61
    assert cut.returncode in {20, 23}, cut.stderr
    assert "10.20.20.3" in cut.stderr
    assert again.returncode == 0, again.stderr
    _nothing_left(hosts)


def test_slow_link_is_said_aloud(head: Head, hosts: Hosts, toys: dict[str, Path]) -> None:
    """A link at the rate of old Ethernet is named as such, and the cluster still comes up."""
    hosts.link(2).limit("200mbit")
    try:
        up = head.run("up", "--worker", "10.20.20.2", "--model", str(toys["recite"]))
    finally:
        hosts.link(2).unlimit()

    assert up.returncode == 0, up.stderr
    assert "behaves like Wi-Fi or 1 GbE" in up.stderr


def test_dry_run_writes_nothing_on_any_host(
    head: Head, hosts: Hosts, toys: dict[str, Path]
) -> None:
    """A dry run prints the exact programs of each host and leaves every host as it was."""

    def everything() -> set[str]:
        return {str(path) for number in (2, 3) for path in hosts[number].folder.rglob("*")}

    before = everything()

    dry = head.run("up", *_WORKERS, "--model", str(toys["recite"]), "--dry-run")

    assert dry.returncode == 0, dry.stderr
    assert "ggml-rpc-server --host 10.20.20.2 --port 50052" in dry.stdout
    assert "--rpc 10.20.20.2:50052,10.20.20.3:50052" in dry.stdout
    assert everything() == before


def _listens_or_ended(hosts: Hosts, up: subprocess.Popen[str]) -> bool:
    return "10.20.20.3:50052" in hosts.listening(3) or up.poll() is not None


def _kill_rpc_server(hosts: Hosts, number: int) -> None:
    # The program itself, not a shell that starts or watches it.
    programs = {pid: line.split(" ")[0] for pid, line in hosts.processes(number).items()}
    for pid, name in programs.items():
        if name.endswith("/ggml-rpc-server"):
            os.kill(pid, signal.SIGKILL)


def _variables(hosts: Hosts, number: int) -> dict[str, str]:
    """Return what of the engine's variables the one program of the engine on a host has."""
    (pid,) = (
        pid
        for pid, line in hosts.processes(number).items()
        if line.split(" ")[0].endswith(("/llama-server", "/ggml-rpc-server"))
    )
    words = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    pairs = dict(word.partition("=")[::2] for word in words)
    return {name: pairs[name] for name in PROGRAM_VARIABLES if name in pairs}


def _nothing_left(hosts: Hosts) -> None:
    def left() -> dict[int, object]:
        found = {n: (hosts.processes(n), hosts.listening(n)) for n in (1, 2, 3)}
        return {number: parts for number, parts in found.items() if any(parts)}

    # The SSH server needs a moment to end the session of a client that has gone.
    wait_for(lambda: not left(), what="the end of all processes")
    for number in (1, 2, 3):
        assert not list((hosts[number].folder / "state").rglob("pid"))


@contextlib.contextmanager
def _replaced(path: Path, text: str) -> Iterator[None]:
    before = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(before)
