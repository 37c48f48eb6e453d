"""Bringing one worker from nothing to ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from ggufcluster.adapters.remote import CommandResult
from ggufcluster.adapters.rpc import LinkSpeed, WorkerReport
from ggufcluster.core.record import WorkerRecord
from ggufcluster.core.worker_address import SshWorker
from ggufcluster.errors import (
    WorkerAddressError,
    WorkerBusyError,
    WorkerFingerprintError,
    WorkerNotReadyError,
)
from ggufcluster.workflows import workers
from ggufcluster.workflows.events import Finished, Note, Warned, Workflow, drain
from ggufcluster.workflows.machines import Machine, survey
from tests.workflows.fakes import FINGERPRINT, Host, Process, World, collect, facts, run_folder

RUN = run_folder("/home/w", "w")
WORKER = WorkerRecord("10.20.20.2", "10.20.20.2", RUN, "10.20.20.2")
ENDPOINT = "10.20.20.2:50052"


@pytest.fixture
def world() -> World:
    """Give a world with two far hosts."""
    return World(Path("/h"))


@pytest.fixture
def host(world: World) -> Host:
    """Give the first far host."""
    return world.hosts["10.20.20.2"]


def machine_with(host: Host, **sections: str) -> Machine:
    """Survey a host in which some sections of the probe say something else."""
    host.facts = facts(host.name, changes=sections)
    return survey(host)


def starting(
    world: World, host: Host, *, seconds: float = 5.0
) -> Workflow[tuple[WorkerRecord, WorkerReport]]:
    """Start the worker on a host."""
    return workers.start_worker(
        world.seams(),
        survey(host),
        WORKER,
        bin_folder=PurePosixPath("/e/bin"),
        fingerprint=FINGERPRINT,
        owner="id:/s me@head",
        ready_seconds=seconds,
    )


def test_a_worker_gets_address_port_and_owner(world: World, host: Host) -> None:
    """It listens on its own address and the first port, and its memory is told."""
    events, (started, _) = collect(starting(world, host))
    assert (started.endpoint, started.name) == (ENDPOINT, "10.20.20.2")
    assert host.processes[RUN].owner == "id:/s me@head"
    assert host.processes[RUN].words == [
        *("/e/bin/ggml-rpc-server", "--host", "10.20.20.2", "--port", "50052", "--cache")
    ]
    assert events[-1] == Finished("Starting 10.20.20.2", f"{ENDPOINT}, 1 device, 120 GiB")


def test_a_taken_port_is_passed_over(world: World, host: Host) -> None:
    """The next free port is used and recorded."""
    host.facts = facts("w", changes={"listening": "00000000:C384\n0214140A:C385"})
    started, _ = drain(starting(world, host))
    assert started.port == 50054


def test_a_port_lost_to_somebody_quicker_is_passed_over(world: World, host: Host) -> None:
    """When the port was free at the look and taken at the start, the next one is tried."""
    host.lost_ports = {50052, 50053}
    started, _ = drain(starting(world, host))
    assert started.port == 50054
    assert len(host.alive()) == 1


def test_another_worker_on_the_port_is_not_taken_for_ours(world: World, host: Host) -> None:
    """Whoever answers before our process says that it listens is not asked at all."""
    host.on("setsid sh -c", lambda _: CommandResult(0, "1 5 boot\n", ""))
    host.processes[RUN] = Process(1, "id:/s me@head", ["x"])
    with pytest.raises(WorkerNotReadyError, match="it does not listen"):
        drain(starting(world, host, seconds=2.0))

    def listen() -> None:
        host.processes[RUN].log += f"ggufcluster: listening on {ENDPOINT}, build b\n"

    world.clock.naps = [listen]
    started, _ = drain(starting(world, host))
    assert started.endpoint == ENDPOINT


def test_no_free_port_is_an_error(world: World, host: Host) -> None:
    """When all ports of the range are taken, nothing is started."""
    taken = "\n".join(f"00000000:{port:04X}" for port in range(50052, 50152))
    host.facts = facts("w", changes={"listening": taken})
    with pytest.raises(WorkerNotReadyError, match="no free port from 50052 upwards"):
        drain(starting(world, host))
    assert host.processes == {}


def test_a_slow_worker_is_waited_for(world: World, host: Host) -> None:
    """As long as it lives and time is left, it is asked again."""
    refused = WorkerNotReadyError(ENDPOINT, reason="connection refused")
    world.trouble[f"probe {ENDPOINT}"] = [refused, refused, refused]
    drain(starting(world, host))
    assert world.clock.time == pytest.approx(100.6)


def test_the_wait_has_an_end(world: World, host: Host) -> None:
    """After the time allowed, the error has the last reason, the wait and the log's end."""
    refused = WorkerNotReadyError(ENDPOINT, reason="gave no answer in time")
    world.trouble[f"probe {ENDPOINT}"] = [refused] * 100
    with pytest.raises(WorkerNotReadyError) as caught:
        drain(starting(world, host, seconds=3.0))
    assert caught.value.reason == "gave no answer in time (waited 3 s)"
    assert caught.value.worker == "10.20.20.2"
    assert caught.value.log_tail[-2:] == ("a first line", "a last line")
    assert world.clock.time == pytest.approx(103.0, abs=0.3)


@pytest.mark.parametrize("life", ["dead", "frozen"])
def test_a_worker_that_ends_is_not_waited_for(world: World, host: Host, life: str) -> None:
    """One that has ended or is frozen is told at once, with the end of its log."""

    def end() -> None:
        host.processes[RUN].life = life

    world.clock.naps = [end]
    refused = WorkerNotReadyError(ENDPOINT, reason="connection refused")
    world.trouble[f"probe {ENDPOINT}"] = [refused] * 9
    with pytest.raises(WorkerNotReadyError, match=f"the RPC server is {life}") as caught:
        drain(starting(world, host))
    assert caught.value.log_tail[-2:] == ("a first line", "a last line")
    assert len(world.trouble[f"probe {ENDPOINT}"]) == 8


def test_a_stranger_on_the_port_is_not_waited_for(world: World, host: Host) -> None:
    """Another engine answering is an error at once."""
    error = WorkerFingerprintError(ENDPOINT, theirs="other", ours=FINGERPRINT)
    world.trouble[f"probe {ENDPOINT}"] = [error]
    with pytest.raises(WorkerFingerprintError):
        drain(starting(world, host))


def test_stale_processes_of_ours_are_ended(host: Host) -> None:
    """What an earlier cluster of this head left is ended and named; what is kept or dead stays."""
    machine = survey(host)
    old, kept, dead = (run_folder("/home/w", "w", cluster=name) for name in ("old", "kept", "dead"))
    host.processes = {
        old: Process(1, "id:/s me@head", ["x"]),
        kept: Process(2, "id:/s me@head", ["x"]),
        dead: Process(3, "other:/s you@other", ["x"], life="dead"),
    }
    events = list(workers.clear_stale(machine, owner="id:/s me@renamed", keep="kept"))
    assert events == [Note(f"me@10.20.20.2: ended a process left by an earlier run ({old})")]
    assert host.alive() == [kept]


def test_a_worker_of_another_head_is_left_alone(host: Host) -> None:
    """A running worker that somebody else started is an error that names who."""
    run = run_folder("/home/w", "w")
    host.processes = {run: Process(1, "other:/s you@other head", ["x"], life="frozen")}
    with pytest.raises(WorkerBusyError) as caught:
        list(workers.clear_stale(survey(host), owner="id:/s me@head"))
    assert caught.value.holder == "you@other head"
    assert host.alive() == [run]


def test_heads_are_told_apart_by_machine_and_folder(host: Host, world: World) -> None:
    """The owner's line begins with one word for machine and state folder, spaces or not."""
    spaced = Host("x", home="/home/a b")
    lines = {workers.owner_of(survey(one)).split()[0] for one in (host, world.head, spaced)}
    assert len(lines) == 3
    assert workers.owner_of(survey(spaced)).split()[1:] == ["me@x"]


def test_company_is_named(host: Host) -> None:
    """Big processes of others and services that end big loads are warnings of their own."""
    machine = machine_with(
        host, processes="7 2621440 firefox", gpu_processes="8, [N/A], python", guards="earlyoom"
    )
    texts = [event.text for event in workers.warn_of_company(machine) if isinstance(event, Warned)]
    assert texts[0] == "me@10.20.20.2: firefox (pid 7) holds 10.0 GiB"
    assert texts[1] == "me@10.20.20.2: python (pid 8) holds memory"
    assert "systemctl stop earlyoom" in texts[2]
    assert list(workers.warn_of_company(machine_with(host))) == []


def test_the_worker_listens_where_the_head_reaches_it(host: Host) -> None:
    """The address is that of the connection, not the name."""
    worker = SshWorker("spark")
    assert workers.worker_address(host, worker, allow_public=False) == "10.20.20.2"


def test_the_head_itself_is_no_far_worker(host: Host) -> None:
    """A name that leads back to this machine is refused with the way to say it."""
    host.peer_address = host.own_address
    with pytest.raises(WorkerAddressError, match="write 'local'"):
        workers.worker_address(host, SshWorker("me"), allow_public=False)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("8.8.8.8", "is a public address"),
        ("0.0.0.0", "every address"),
        ("fd00::1", "IPv6"),
        ("2001:4860:4860::8888", "IPv6"),
    ],
)
def test_addresses_for_everybody_are_refused(address: str, reason: str) -> None:
    """RPC has no password: public and unspecified addresses are refused, IPv6 does not work."""
    with pytest.raises(WorkerAddressError, match=reason):
        workers.check_address(address, worker="w", allow_public=False)


@pytest.mark.parametrize("address", ["10.20.20.2", "192.168.1.5", "169.254.3.4", "127.0.0.1"])
def test_private_addresses_pass(address: str) -> None:
    """Private, link-local and loopback addresses are fine."""
    workers.check_address(address, worker="w", allow_public=False)


def test_a_public_address_may_be_allowed() -> None:
    """An explicit setting allows a public address, but never all addresses."""
    workers.check_address("8.8.8.8", worker="w", allow_public=True)
    with pytest.raises(WorkerAddressError):
        workers.check_address("0.0.0.0", worker="w", allow_public=True)


@pytest.mark.parametrize(
    ("link", "slow"),
    [
        (LinkSpeed(1e-4, 2.5e9), False),
        (LinkSpeed(1e-4, 112e6), True),
        (LinkSpeed(5e-3, 2.5e9), True),
    ],
)
def test_a_poor_link_is_said_aloud(link: LinkSpeed, *, slow: bool) -> None:
    """Figures are always told and recorded; a link like Wi-Fi or 1 GbE is a warning too."""
    workflow = workers.describe_link(replace(WORKER, port=50052), link)
    events = list(workflow)
    assert isinstance(events[0], Note)
    assert "MB/s over TCP" in events[0].text
    assert any(isinstance(event, Warned) for event in events) is slow
    recorded = drain(workers.describe_link(WORKER, link))
    assert (recorded.round_trip, recorded.rate) == (link.round_trip, link.rate)


def test_local_workers_are_numbered_only_if_several() -> None:
    """One is called local, more are counted from one."""
    assert workers.local_names(1) == ["local"]
    assert workers.local_names(2) == ["local-1", "local-2"]
