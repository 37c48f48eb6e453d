"""The workers of a model in a Python process, on pretended hosts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.rpc import NO_ANSWER
from ggufcluster.core.build_id import Backend, BuildOptions
from ggufcluster.core.engine import Engine
from ggufcluster.core.machine import Machine
from ggufcluster.core.wish import Wish
from ggufcluster.errors import (
    ConfigError,
    HostUnreachableError,
    WorkerBusyError,
    WorkerFingerprintError,
    WorkerNotReadyError,
)
from ggufcluster.workflows.events import Note
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.up import Engines
from ggufcluster.workflows.worker_group import WorkerGroup, stop_quietly
from tests.workflows.fakes import FINGERPRINT, Process, World, collect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.workflows.events import Event, Workflow

FIRST, SECOND = "10.20.20.2", "10.20.20.3"
ENGINE = Engine(
    folder=PurePosixPath("/e"),
    build_id="b",
    fingerprint=FINGERPRINT,
    options=BuildOptions(Backend.CPU),
    machine=Machine("x86_64", "glibc 2.36"),
    size=1,
)
GONE = "/h/w/state/ggufcluster/python/run/4194304-1-abcd/10.20.20.2"


@dataclass
class Case:
    """A group in a world of its own.

    Attributes:
        world: The hosts.
        built: Hosts for which an engine was asked for.
    """

    world: World
    built: list[str] = field(default_factory=list)

    def group(
        self, *workers: str, attached: Sequence[str] = (), avoid: frozenset[int] = frozenset()
    ) -> WorkerGroup:
        """Make a group."""
        wish = Wish(model="/m.gguf", workers=workers, ready_seconds=5.0)
        engines = Engines(on_head=lambda: self._engine("head"), on_worker=self._on_worker)
        return WorkerGroup(self.world.seams(), engines, wish, attached=attached, avoid=avoid)

    def start(self, group: WorkerGroup, *, layers: int = 8) -> list[Event]:
        """Start it and return the events."""
        head = survey(self.world.head)
        events, _ = collect(group.start(head, ENGINE, layers=layers, model="m"))
        return events

    def _on_worker(self, remote: object, _engine: Engine) -> Workflow[Engine]:
        return self._engine(str(getattr(remote, "name", "")))

    def _engine(self, host: str) -> Workflow[Engine]:
        self.built.append(host)
        yield Note(f"engine for {host}")
        return ENGINE


@pytest.fixture
def case() -> Case:
    """A head and two hosts on which nothing runs."""
    return Case(World(Path("/h")))


def test_local_and_far_workers_start_and_end(case: Case) -> None:
    """Each has an endpoint, in the order asked for; nothing is left after `stop`."""
    group = case.group("local", FIRST, SECOND)
    case.start(group)
    assert group.endpoints == ("127.0.0.1:50052", f"{FIRST}:50052", f"{SECOND}:50052")
    assert [memory.machine for memory in group.memories] == ["local", FIRST, SECOND]
    assert case.built == [f"me@{FIRST}", f"me@{SECOND}"]
    assert len(case.world.alive()) == 3
    group.stop()
    group.stop()
    assert case.world.alive() == []


def test_run_folders_are_apart_and_name_the_process(case: Case) -> None:
    """`up` ends what it finds in its own folders: these lie elsewhere and tell whose they are."""
    case.start(case.group("local", FIRST))
    runs = [PurePosixPath(run) for run in case.world.alive()]
    assert all("python" in run.parts for run in runs)
    assert {run.parent.name.partition("-")[0] for run in runs} == {str(os.getpid())}


def test_a_host_that_cannot_be_reached_starts_nothing(case: Case) -> None:
    """Hosts are opened before any worker is started."""
    case.world.hosts[SECOND].reachable = False
    with pytest.raises(HostUnreachableError):
        case.start(case.group("local", FIRST, SECOND))
    assert case.world.alive() == []
    assert case.world.head.started("ggml-rpc-server") == []


def test_a_worker_that_is_not_ready_takes_the_others_with_it(case: Case) -> None:
    """If the last one runs another engine, those before it are ended."""
    wrong = WorkerFingerprintError(f"{SECOND}:50052", theirs="f1", ours=FINGERPRINT)
    case.world.trouble[f"probe {SECOND}:50052"] = [wrong] * 9
    with pytest.raises((WorkerFingerprintError, WorkerNotReadyError)):
        case.start(case.group("local", FIRST, SECOND))
    assert len(case.world.head.started("ggml-rpc-server")) == 1
    assert case.world.alive() == []


def test_more_workers_than_layers_are_refused(case: Case) -> None:
    """Every worker needs a layer; workers that run already count."""
    with pytest.raises(ConfigError):
        case.start(case.group("local:2", attached=("10.9.9.9:1",)), layers=2)
    assert case.world.alive() == []


def test_attached_workers_come_last_and_are_left_alone(case: Case) -> None:
    """They are asked for their memory, not started and not ended."""
    group = case.group("local", attached=(f"{FIRST}:50052", "127.0.0.1:7"))
    case.start(group)
    assert group.endpoints == ("127.0.0.1:50052", f"{FIRST}:50052", "127.0.0.1:7")
    assert [memory.machine for memory in group.memories] == ["local", FIRST, "local"]
    assert [memory.gpu for memory in group.memories] == [False] * 3
    group.stop()
    assert case.world.hosts[FIRST].processes == {}


def test_an_attached_worker_that_is_silent_ends_the_start(case: Case) -> None:
    """What was started for it is ended."""
    silent = WorkerNotReadyError(f"{FIRST}:50052", reason=NO_ANSWER)
    case.world.trouble[f"probe {FIRST}:50052"] = [silent]
    with pytest.raises(WorkerNotReadyError, match=r"in time; .* is it in use\?"):
        case.start(case.group("local", attached=(f"{FIRST}:50052",)))
    assert case.world.alive() == []


def test_ports_of_lost_workers_are_passed_over(case: Case) -> None:
    """The engine keeps one connection for an endpoint for good."""
    group = case.group("local", FIRST, avoid=frozenset({50052, 50053}))
    case.start(group)
    assert group.endpoints == ("127.0.0.1:50054", f"{FIRST}:50054")


def test_what_a_process_that_is_gone_left_is_ended(case: Case) -> None:
    """The next group of the same user ends it and says so."""
    case.start(case.group(FIRST))
    (living,) = case.world.hosts[FIRST].processes.values()
    case.world.hosts[FIRST].processes[GONE] = Process(7, living.owner, ["x/ggml-rpc-server"])
    events = case.start(case.group(FIRST))
    assert case.world.hosts[FIRST].processes[GONE].life == "absent"
    assert any(isinstance(event, Note) and "ended a worker left" in event.text for event in events)
    assert len(case.world.hosts[FIRST].alive()) == 2  # this process' first group lives on


def test_a_worker_of_another_head_is_named(case: Case) -> None:
    """It may hold the machine's memory: the group does not start beside it."""
    stranger = Process(7, "another:/state you@elsewhere", ["x/ggml-rpc-server"])
    case.world.hosts[FIRST].processes[GONE] = stranger
    with pytest.raises(WorkerBusyError, match="you@elsewhere"):
        case.start(case.group(FIRST))
    assert stranger.life == "alive"


def test_one_host_that_is_lost_does_not_keep_the_others(case: Case) -> None:
    """Stopping goes on past a host that does not answer, and then says so."""
    group = case.group("local", FIRST, SECOND)
    case.start(group)
    case.world.hosts[FIRST].reachable = False
    with pytest.raises(HostUnreachableError):
        group.stop()
    assert case.world.head.alive() == []
    assert case.world.hosts[SECOND].alive() == []
    case.world.hosts[FIRST].reachable = True
    again = case.group(FIRST)
    case.start(again)
    case.world.hosts[FIRST].reachable = False
    stop_quietly(again)  # nobody could be told


def test_a_start_that_is_given_up_leaves_nothing(case: Case) -> None:
    """Closing the workflow midway ends what began."""
    group = case.group("local:2")
    steps = group.start(survey(case.world.head), ENGINE, layers=8, model="m")
    while not case.world.alive():
        next(steps)
    steps.close()
    assert case.world.alive() == []
