"""Taking a cluster down."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufcluster.core.record import ClusterRecord, WorkerRecord
from ggufcluster.errors import ClusterBusyError, HostError, HostUnreachableError, RecordError
from ggufcluster.workflows.down import down
from ggufcluster.workflows.events import Finished, Note, Started, Warned, drain
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.store import Store
from ggufcluster.workflows.workers import owner_of
from tests.workflows.fakes import Process, World, run_folder


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Give a world with a head, a local worker and two far ones, all running."""
    found = World(tmp_path)
    home = str(tmp_path)
    for name in ("head", "local"):
        found.head.processes[run_folder(home, name)] = Process(1, "me", [name])
    for name, host in found.hosts.items():
        host.processes[run_folder(host.home, name)] = Process(1, "me", [name])
    return found


@pytest.fixture
def store(world: World) -> Store:
    """Give the store with the record of that cluster."""
    home = world.head.home
    workers = [
        WorkerRecord(name, f"me@{name}", run_folder(host.home, name), host.peer_address, 50052)
        for name, host in world.hosts.items()
    ]
    workers.append(WorkerRecord("local", "local", run_folder(home, "local"), "127.0.0.1", 50052))
    kept = Store(world.paths)
    kept.save(
        ClusterRecord(
            id="c",
            created=0.0,
            wish="{}",
            build_id="b",
            head_run=run_folder(home, "head"),
            root="http://127.0.0.1:8080",
            api_key_file=None,
            model="M",
            workers=tuple(workers),
        )
    )
    return kept


def test_everything_is_ended_head_first(world: World, store: Store) -> None:
    """Head and workers are ended, each is reported, and the record is gone."""
    events = list(down(world.seams(), store))
    assert [event.label for event in events if isinstance(event, Started)] == [
        *("Ending the head", "Ending 10.20.20.2", "Ending 10.20.20.3", "Ending local")
    ]
    assert [event.detail for event in events if isinstance(event, Finished)] == ["ended"] * 4
    assert world.alive() == []
    assert store.load() is None


def test_a_second_time_there_is_nothing_to_do(world: World, store: Store) -> None:
    """Without a record nothing is touched, and the result says so."""
    assert drain(down(world.seams(), store)) is True
    before = sum(len(host.commands) for host in world.everywhere())
    assert list(down(world.seams(), store)) == [Note("no cluster is up")]
    assert drain(down(world.seams(), store)) is False
    assert sum(len(host.commands) for host in world.everywhere()) == before


def test_logs_are_kept_beside_the_run_folders(world: World, store: Store) -> None:
    """The last log of each part goes to a name of its own, and the run folder is removed."""
    drain(down(world.seams(), store))
    runs = f"{world.head.home}/state/ggufcluster/run"
    assert set(world.head.files) == {f"{runs}/head.last.log", f"{runs}/local.last.log"}
    assert sum(text.count("rm -rf") for text in world.head.shown()) == 2


def test_a_host_that_does_not_answer_stops_nothing_else(world: World, store: Store) -> None:
    """The others are ended, the failure is told, and the record stays for another try."""
    world.hosts["10.20.20.2"].reachable = False
    with pytest.raises(HostUnreachableError):
        drain(down(world.seams(), store))
    assert store.load() is not None
    assert [run.rpartition("/")[2] for run in world.alive()] == ["10.20.20.2"]
    world.hosts["10.20.20.2"].reachable = True
    assert drain(down(world.seams(), store)) is True
    assert world.alive() == []
    assert store.load() is None


def test_a_host_that_is_gone_for_good_can_be_forgotten(world: World, store: Store) -> None:
    """Asked to forget, down ends what it reaches, warns of the rest and drops the record."""
    world.hosts["10.20.20.2"].reachable = False
    events = list(down(world.seams(), store, forget=True))
    assert any(isinstance(event, Warned) and "forgotten" in event.text for event in events)
    assert [run.rpartition("/")[2] for run in world.alive()] == ["10.20.20.2"]
    assert store.load() is None


def test_one_that_does_not_end_is_told(world: World, store: Store) -> None:
    """A process that even force does not end keeps the record and is an error."""
    world.hosts["10.20.20.3"].on("wait_gone()", "stuck\n")
    with pytest.raises(HostError, match=r"me@10\.20\.20\.3: .* does not end"):
        drain(down(world.seams(), store))
    assert store.load() is not None


def test_what_has_ended_by_itself_is_no_failure(world: World, store: Store) -> None:
    """After a crash of head and workers, down only tidies up."""
    for host in world.everywhere():
        for process in host.processes.values():
            process.life = "dead"
    events = list(down(world.seams(), store))
    assert [event.detail for event in events if isinstance(event, Finished)] == ["dead"] * 4
    assert not any(isinstance(event, Warned) for event in events)
    assert store.load() is None


def test_another_command_is_not_disturbed(world: World, store: Store) -> None:
    """While another command is at work, down ends nothing."""
    with store.writer(), pytest.raises(ClusterBusyError):
        drain(down(world.seams(), store))
    assert len(world.alive()) == 4


def test_a_damaged_record_can_be_forgotten(world: World, store: Store) -> None:
    """Nobody knows the workers then, but what runs on this machine is ended all the same."""
    for process in world.head.processes.values():
        process.owner = owner_of(survey(world.head))
    path = Path(world.paths.state / "cluster.json")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(RecordError):
        drain(down(world.seams(), store))
    assert len(world.head.alive()) == 2
    assert drain(down(world.seams(), store, forget=True))
    assert world.head.alive() == []
    assert store.load() is None
