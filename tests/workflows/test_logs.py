"""Showing a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufcluster.adapters.remote import CommandResult
from ggufcluster.core.record import ClusterRecord, WorkerRecord
from ggufcluster.errors import ClusterUnhealthyError, ConfigError, HostUnreachableError
from ggufcluster.workflows.logs import logs
from tests.workflows.fakes import World

WORKERS = (
    WorkerRecord("10.20.20.2", "me@10.20.20.2:22", "/w/c/10.20.20.2", "10.20.20.2", 50052),
    WorkerRecord("local", "local", "/h/c/local", "127.0.0.1", 50052),
)
RECORD = ClusterRecord(
    id="c",
    created=0.0,
    wish="{}",
    build_id="b",
    head_run="/h/c/head",
    root="http://127.0.0.1:8080",
    api_key_file=None,
    model="M",
    workers=WORKERS,
)


@pytest.fixture
def world() -> World:
    """Give a world whose hosts tell which log they were asked for."""
    found = World(Path("/h"))
    found.head.on("tail", "a line of the head\n")
    found.hosts["10.20.20.2"].on("tail", "a line of the worker\n")
    return found


@pytest.mark.parametrize(
    ("who", "run", "line"),
    [
        ("head", "/h/c/head", "a line of the head"),
        ("worker", "/w/c/10.20.20.2", "a line of the worker"),
        ("worker-1", "/w/c/10.20.20.2", "a line of the worker"),
        ("10.20.20.2", "/w/c/10.20.20.2", "a line of the worker"),
        ("worker-2", "/h/c/local", "a line of the head"),
        ("local", "/h/c/local", "a line of the head"),
    ],
)
def test_the_log_is_found_by_name_or_number(world: World, who: str, run: str, line: str) -> None:
    """The head, the first worker, the n-th one and one by name each have their log and host."""
    assert list(logs(world.seams(), RECORD, who, lines=7, follow=False)) == [line]
    asked = [text for host in world.everywhere() for text in host.shown()]
    assert asked == [f"tail -n 7 {run}/log"]


def test_following_goes_on_when_the_log_is_replaced(world: World) -> None:
    """Following asks for the file by name, so that a new start is followed as well."""
    list(logs(world.seams(), RECORD, "head", lines=7, follow=True))
    assert world.head.shown() == ["tail -n 7 -F /h/c/head/log"]


def test_an_unknown_part_is_told_what_there_is(world: World) -> None:
    """The error lists the parts of the cluster."""
    with pytest.raises(ConfigError, match=r"no .tail.; it has head, 10\.20\.20\.2, local"):
        list(logs(world.seams(), RECORD, "tail", lines=1, follow=False))


def test_an_unreachable_host_is_an_error(world: World) -> None:
    """A log on a host that does not answer cannot be shown."""
    world.hosts["10.20.20.2"].reachable = False
    with pytest.raises(HostUnreachableError):
        list(logs(world.seams(), RECORD, "worker", lines=1, follow=False))


def test_without_a_cluster_the_last_log_is_shown(world: World) -> None:
    """After a failed start its kept log can be read; if there is none, that is said."""
    assert list(logs(world.seams(), None, "head", lines=7, follow=True)) == ["a line of the head"]
    assert world.head.shown()[-1] == "tail -n 7 /h/state/ggufcluster/run/head.last.log"
    world.head.on("tail", CommandResult(1, "", "no such file"))
    with pytest.raises(ClusterUnhealthyError, match=r"none left a log of 'x' on this machine"):
        list(logs(world.seams(), None, "x", lines=7, follow=False))
