"""Watching a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.adapters.remote import CommandResult
from ggufcluster.core.record import ClusterRecord, WorkerRecord
from ggufcluster.errors import HeadStartError, LoadStalledError, WorkerNotReadyError
from ggufcluster.workflows.events import Finished, Progress, Started, Unit, drain
from ggufcluster.workflows.loading import LoadWatch
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.processes import last_log_path
from tests.workflows.fakes import FakeApi, Process, World, collect

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_RUN = "/h/c/head"
WORKERS = tuple(
    WorkerRecord(name, name, f"/w/c/{name}", name, 50052) for name in ("10.20.20.2", "10.20.20.3")
)
RECORD = ClusterRecord(
    id="c",
    created=0.0,
    wish="{}",
    build_id="b",
    head_run=HEAD_RUN,
    root="http://127.0.0.1:8080",
    api_key_file=None,
    model="M",
    workers=WORKERS,
)
STALL = 30.0


class Load:
    """A load under way, in a world of its own.

    Attributes:
        world: The hosts, with head and workers running.
        log: Bytes of the head's log.
        read: Bytes that the head has read.
        sent: Bytes that went to each worker.
    """

    def __init__(self, *healths: str) -> None:
        self.world = World(Path("/h"))
        self.world.api = FakeApi(list(healths))
        self.log = self.read = 0
        self.sent = dict.fromkeys((worker.name for worker in WORKERS), 0)
        head = self.world.head
        head.processes[HEAD_RUN] = Process(77, "me", ["llama-server"])
        for worker in WORKERS:
            process = Process(1, "me", ["ggml-rpc-server"])
            self.world.hosts[worker.name].processes[worker.run] = process
        head.on(f"stat -c %s {HEAD_RUN}/log", lambda _: CommandResult(0, f"{self.log}\n", ""))
        head.on("grep rchar /proc/77/io", lambda _: CommandResult(0, f"rchar: {self.read}\n", ""))
        head.on("ss --tcp", lambda _: CommandResult(0, self._sockets(), ""))

    @property
    def head(self) -> Process:
        """The llama-server."""
        return self.world.head.processes[HEAD_RUN]

    def worker(self, number: int) -> Process:
        """Return an RPC server."""
        worker = WORKERS[number]
        return self.world.hosts[worker.name].processes[worker.run]

    def watch(self) -> LoadWatch:
        """Return the watch of this load."""
        return LoadWatch(
            seams=self.world.seams(),
            head=survey(self.world.head),
            record=RECORD,
            api=self.world.api,
            machines={name: survey(host) for name, host in self.world.hosts.items()},
            expected={"10.20.20.2": 1000, "10.20.20.3": 500},
            stall_seconds=STALL,
        )

    def at_each_nap(self, act: Callable[[], None], times: int) -> None:
        """Let something happen whenever the watch sleeps."""
        self.world.clock.naps = [act] * times

    def _sockets(self) -> str:
        return "".join(
            f"0 0 10.20.20.1:41234 {worker.endpoint}\n\t bytes_acked:{self.sent[worker.name]}\n"
            for worker in WORKERS
        )


def test_a_load_is_watched_until_it_is_ready() -> None:
    """Start and end are told, and in between how many bytes each worker got of how many."""
    load = Load("down", "loading", "ok")

    def go_on() -> None:
        load.sent["10.20.20.2"] += 400

    load.at_each_nap(go_on, 2)
    events, _ = collect(load.watch().run())
    assert events[0] == Started("Loading M")
    assert events[-1] == Finished("Loading M", "800 B sent in 0.5 s")
    shown = [event for event in events if isinstance(event, Progress)]
    assert [event.done for event in shown if event.label == "to 10.20.20.2"] == [0, 400, 800]
    assert shown[-1] == Progress("to 10.20.20.3", 0, 500, Unit.BYTES)


def test_more_bytes_than_expected_are_no_more_than_everything() -> None:
    """A worker that gets more than was reckoned is shown full, not beyond."""
    load = Load("loading", "ok")
    load.sent["10.20.20.3"] = 900
    events, _ = collect(load.watch().run())
    assert Progress("to 10.20.20.3", 900, 900, Unit.BYTES) in events


def test_a_machine_without_ss_only_shows_less() -> None:
    """When sockets cannot be listed, the load works all the same."""
    load = Load("loading", "loading", "ok")
    load.world.head.on("ss --tcp", CommandResult(127, "", "not found"))
    events, _ = collect(load.watch().run())
    assert events[-1] == Finished("Loading M", "in 0.5 s")


@pytest.mark.parametrize("sign", ["log", "read", "sent"])
def test_any_sign_of_life_keeps_a_long_load_alive(sign: str) -> None:
    """A load far longer than the limit goes on while log, disk or network move."""
    rounds = int(3 * STALL / 0.25)
    load = Load(*["loading"] * rounds, "ok")

    def move() -> None:
        if sign == "sent":
            load.sent["10.20.20.3"] += 1
        else:
            setattr(load, sign, getattr(load, sign) + 1)

    load.at_each_nap(move, rounds)
    drain(load.watch().run())
    assert load.world.clock.time == pytest.approx(100.0 + 3 * STALL)


def test_no_progress_for_too_long_is_an_error() -> None:
    """When nothing moves any more, the wait ends after the limit, counted from the last move."""
    load = Load("loading")

    def move() -> None:
        load.log += 1

    load.at_each_nap(move, 40)
    with pytest.raises(LoadStalledError) as caught:
        drain(load.watch().run())
    assert caught.value.phase == "loading M"
    assert caught.value.log == last_log_path(HEAD_RUN)
    assert load.world.clock.time == pytest.approx(100.0 + 10.0 + STALL, abs=0.6)


def test_a_frozen_head_is_noticed_soon() -> None:
    """A head that is stopped by a signal is told at once, long before a stall."""
    load = Load("down")
    load.head.life = "frozen"
    with pytest.raises(HeadStartError, match="frozen"):
        drain(load.watch().run())
    assert load.world.clock.time < 100.0 + 5.0


def test_a_check_names_the_worker_that_took_the_head_along() -> None:
    """Looked at once more after the load, head and workers pass if they live; a loss is named."""
    load = Load("ok")
    watch = load.watch()
    watch.check()
    load.worker(0).life = load.head.life = "dead"
    with pytest.raises(WorkerNotReadyError, match="has ended"):
        watch.check()
    load.worker(0).life = "alive"
    with pytest.raises(HeadStartError):
        watch.check()


def test_a_head_that_ends_is_told_with_its_reason() -> None:
    """The first complaint of its log is the reason, and the end of the log comes along."""
    load = Load("loading")
    load.head.life = "dead"
    load.head.log = "0.1 I loading\n0.2 E failed to open the file\n" + "more\n" * 20
    with pytest.raises(HeadStartError, match="failed to open the file") as caught:
        drain(load.watch().run())
    assert caught.value.log_tail == ("more",) * 12
    assert caught.value.log == last_log_path(HEAD_RUN)


def test_a_lost_worker_is_named_rather_than_the_head() -> None:
    """When a worker takes the head with it, the worker is the cause, even if just seen alive."""
    load = Load("loading")

    def lose() -> None:
        load.worker(1).life = "dead"
        load.head.life = "dead"

    load.at_each_nap(lose, 1)
    with pytest.raises(WorkerNotReadyError, match="its RPC server has ended") as caught:
        drain(load.watch().run())
    assert caught.value.worker == "10.20.20.3"
    assert caught.value.log_tail == ("a first line", "a last line")


def test_a_frozen_worker_is_noticed_soon() -> None:
    """A worker that is stopped by a signal is told within seconds, long before a stall."""
    load = Load("loading")

    def freeze() -> None:
        load.worker(0).life = "frozen"

    load.at_each_nap(freeze, 1)
    with pytest.raises(WorkerNotReadyError, match="frozen"):
        drain(load.watch().run())
    assert load.world.clock.time < 100.0 + 5.0


def test_workers_are_not_asked_at_every_look() -> None:
    """Far hosts are asked every few seconds, not four times a second."""
    load = Load(*["loading"] * 40, "ok")

    def move() -> None:
        load.log += 1

    load.at_each_nap(move, 40)
    drain(load.watch().run())
    asked: Any = load.world.hosts["10.20.20.2"].count("life()")
    assert 3 <= asked <= 5


def test_another_servers_answer_is_not_believed() -> None:
    """If the head has ended and somebody else answers on its port, the load has failed."""
    load = Load("ok")
    load.head.life = "dead"
    with pytest.raises(HeadStartError):
        drain(load.watch().run())
