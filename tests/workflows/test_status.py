"""Saying how a cluster is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ggufcluster.core.record import ClusterRecord, WorkerRecord
from ggufcluster.core.secret import Secret
from ggufcluster.errors import ConfigError, HeadError
from ggufcluster.workflows.status import Status, read_key, status
from tests.workflows.fakes import Process, World

FAR = WorkerRecord("10.20.20.2", "me@10.20.20.2:22", "/w/c/10.20.20.2", "10.20.20.2", 50052)
NEAR = WorkerRecord("local", "local", "/h/c/local", "127.0.0.1", 50052)
RECORD = ClusterRecord(
    id="c",
    created=1000.0,
    wish="{}",
    build_id="b",
    head_run="/h/c/head",
    root="http://127.0.0.1:8080",
    api_key_file=None,
    model="M",
    workers=(FAR, NEAR),
    parallel=2,
    ready=True,
)


@pytest.fixture
def world() -> World:
    """Give a world in which the cluster of the record is well."""
    found = World(Path("/h"))
    found.api.healths = ["ok"]
    found.head.processes = {
        "/h/c/head": Process(1, "me", ["llama-server"]),
        "/h/c/local": Process(2, "me", ["ggml-rpc-server"]),
    }
    found.hosts["10.20.20.2"].processes[FAR.run] = Process(3, "me", ["ggml-rpc-server"])
    return found


def look(world: World, record: ClusterRecord = RECORD) -> Status:
    """Inspect the cluster."""
    return status(world.seams(), record)


def test_a_healthy_cluster_has_no_problems(world: World) -> None:
    """Everything alive and the head ready: nothing is wrong, and the head tells slots and build."""
    found = look(world)
    assert found.healthy
    assert found.head == "ok"
    assert found.workers == {"10.20.20.2": "alive", "local": "alive"}
    assert (found.slots, found.engine) == (1, "b1-test")
    assert found.uptime == 100.0


@pytest.mark.parametrize(
    ("life", "health", "head", "problem"),
    [
        ("alive", "loading", "loading", "the head is still loading"),
        ("alive", "down", "down", "the head runs but does not answer"),
        ("frozen", "ok", "frozen", "the head is frozen"),
        ("dead", "ok", "ended", "the head has ended"),
    ],
)
def test_a_sick_head_is_told(world: World, life: str, health: str, head: str, problem: str) -> None:
    """Loading, silent, frozen and ended heads are told apart, even if another server answers."""
    world.head.processes["/h/c/head"].life = life
    world.api.healths = [health]
    found = look(world)
    assert (found.head, found.problems, found.slots) == (head, (problem,), None)
    assert world.api.asked == []


@pytest.mark.parametrize("life", ["frozen", "dead", "absent"])
def test_a_sick_worker_is_told(world: World, life: str) -> None:
    """A worker that is frozen, dead or gone makes the cluster unhealthy."""
    world.hosts["10.20.20.2"].processes[FAR.run].life = life
    found = look(world)
    assert found.workers["10.20.20.2"] == life
    assert found.problems == (f"10.20.20.2 is {life}",)


def test_an_unreachable_worker_is_unknown(world: World) -> None:
    """When SSH fails the rest is still told, and the worker's state is unknown with the reason."""
    world.hosts["10.20.20.2"].reachable = False
    found = look(world)
    assert found.workers["10.20.20.2"].startswith("unknown: cannot reach 10.20.20.2")
    assert found.workers["local"] == "alive"
    (problem,) = found.problems
    assert problem.startswith("10.20.20.2 state is unknown: ")


def test_an_unfinished_start_is_no_health(world: World) -> None:
    """A cluster whose proof was not completed is not healthy, though all of it runs."""
    found = look(world, replace(RECORD, ready=False))
    assert found.problems == ("the start was not completed",)


def test_a_head_that_keeps_its_slots_to_itself_is_well(world: World) -> None:
    """Without an answer about slots, they are unknown."""
    world.api.answers["/slots"] = HeadError("501")
    found = look(world)
    assert (found.healthy, found.slots) == (True, None)


def test_nothing_disturbs_a_worker(world: World) -> None:
    """Workers are only looked at as processes: their RPC port is never asked."""

    def never(*_args: object, **_options: object) -> None:
        raise AssertionError

    seams = replace(world.seams(), probe=never, measure=never)  # type: ignore[arg-type]
    assert status(seams, RECORD).healthy
    assert all(len(host.commands) == 1 for host in (world.hosts["10.20.20.2"],))


def test_the_key_is_the_first_that_the_server_takes(world: World, tmp_path: Path) -> None:
    """Comments and empty lines are passed over, and a line counts as a whole."""
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\nsesame one\nsecond\n", encoding="ascii")
    look(world, replace(RECORD, api_key_file=str(keys)))
    assert world.keys == [Secret("sesame one")]
    assert read_key(None) is None


@pytest.mark.parametrize("data", [None, b"", b"# only a comment\n", "schlüssel".encode()])
def test_a_key_file_without_a_key_is_an_error(tmp_path: Path, data: bytes | None) -> None:
    """A file that is missing, empty or no ASCII is named, and its contents are not."""
    keys = tmp_path / "keys"
    if data is not None:
        keys.write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_key(str(keys))
    assert caught.value.source == "head.api_key_file"
    assert str(keys) in caught.value.reason
    assert "schl" not in str(caught.value)
