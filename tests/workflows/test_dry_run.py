"""What `up` would run on each host, told without running it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.remote import CommandResult
from ggufcluster.core.build_id import Backend, BuildOptions
from ggufcluster.core.engine import record_head
from ggufcluster.core.machine import Machine
from ggufcluster.core.wish import Wish
from ggufcluster.errors import (
    ConfigError,
    HostUnreachableError,
    ModelMissingError,
    PlacementError,
    SourceError,
    TemplateError,
    ToolchainError,
    WorkerAddressError,
)
from ggufcluster.workflows.build import BuildRequest
from ggufcluster.workflows.dry_run import HostCommands, dry_run
from ggufcluster.workflows.events import Warned
from ggufcluster.workflows.source import read_vendor
from tests.workflows.fakes import World, collect, facts
from tests.workflows.sources import make_archive, make_vendor
from tests.workflows.tiny_model import write_model

if TYPE_CHECKING:
    from ggufcluster.core.command import Command
    from tests.workflows.fakes import Host

FIRST, SECOND = "10.20.20.2", "10.20.20.3"
PROBE = (Path(__file__).parents[1] / "data" / "probes" / "host-x86-cuda13.txt").read_text()
LOOKS = ("XDG_CACHE_HOME", "say name", "section machine", "@@sizes", "life()", "for run in")


@dataclass
class Case:
    """A dry run in a world of its own."""

    world: World
    wish: Wish
    request: BuildRequest

    def run(self) -> list[HostCommands]:
        """Run it to its end and check that it looked and did nothing else."""
        workflow = dry_run(self.world.seams(), self.wish, self.request)
        _, found = collect(workflow)
        assert self.world.alive() == []
        assert [text for text in self.commands() if not any(look in text for look in LOOKS)] == []
        assert not Path(self.world.paths.state).exists()
        return found

    def commands(self) -> list[str]:
        """Return everything that ran on any host."""
        return [text for host in self.world.everywhere() for text in host.shown()]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """Two far workers and a tiny model; no host has an engine."""
    world = World(tmp_path / "home")
    for host in world.everywhere():
        host.on("section machine", PROBE)
        host.on("@@sizes", "")
    archive = make_archive(tmp_path / "llama_cpp_python-9.9.9.tar.gz")
    request = BuildRequest(Backend.CPU, vendor=make_vendor(tmp_path / "vendor", archive))
    model = write_model(tmp_path / "m.gguf", layers=4)
    return Case(world, Wish(workers=(FIRST, f"me@{SECOND}"), model=str(model)), request)


def give_engine(host: Host, vendor: Path | None) -> None:
    """Let a host have whatever engine it is asked for."""

    def inspect(command: Command) -> CommandResult:
        name = PurePosixPath(command.plain_argv()[-1]).name
        head = record_head(
            build_id=name,
            fingerprint=name.partition("-")[0],
            pin=read_vendor(vendor).pin,
            origin="sdist:aa",
            options=BuildOptions(Backend.CPU),
            machine=Machine("x86_64", "glibc 2.36"),
            tools={},
            built="2026-11-30T08:00:00+00:00",
        )
        files = json.dumps({"path": "llama-server", "size": 5, "sha256": "aa"})
        return CommandResult(0, f"{head}{files}]}}\n@@sizes\n5 llama-server\n", "")

    host.on("@@sizes", inspect)


def without_nvcc(probe: str) -> str:
    """Return what a host without a CUDA compiler would say."""
    return re.sub(r"(@@ nvcc(?:-list)?\n)(?:[^@].*\n)*", r"\1", probe)


def last_words(found: list[HostCommands]) -> dict[str, str]:
    """Return the program of each host."""
    return {one.host: one.commands[-1] for one in found}


def test_each_host_has_its_program(case: Case) -> None:
    """Workers come first, each with its own address, then the head, which names them all."""
    found = case.run()
    programs = last_words(found)
    assert [one.host for one in found] == [FIRST, SECOND, "head"]
    assert f"ggml-rpc-server --host {FIRST} --port 50052 --cache" in programs[FIRST]
    assert f"ggml-rpc-server --host {SECOND} --port 50052 --cache" in programs[SECOND]
    assert f"--rpc {FIRST}:50052,{SECOND}:50052" in programs["head"]
    assert case.wish.model is not None
    assert case.wish.model in programs["head"]


def test_an_engine_that_is_missing_is_said(case: Case) -> None:
    """A far worker would get a copy or build, the head would build; the path is that of the id."""
    for one in case.run():
        note, program = one.commands
        name = note.split()[2]
        how = "built" if one.host == "head" else "copied from the head, or built"
        assert note == f"# engine {name} is missing and would be {how} first"
        assert f"/engines/{name}/bin/" in program


def test_an_engine_that_is_there_is_used(case: Case) -> None:
    """Nothing but the program is told for a host that has it."""
    give_engine(case.world.hosts[FIRST], case.request.vendor)
    counts = {one.host: len(one.commands) for one in case.run()}
    assert counts == {FIRST: 1, SECOND: 2, "head": 2}


def test_a_damaged_engine_is_missing(case: Case) -> None:
    """A record that cannot be read is no engine."""
    case.world.head.on("@@sizes", "{broken\n@@sizes\n5 llama-server\n")
    assert len(case.run()[-1].commands) == 2


def test_local_workers_are_told_by_number(case: Case) -> None:
    """Workers of this machine have ports of their own and are not copied to."""
    case.wish = replace(case.wish, workers=("local:2",))
    found = case.run()
    assert [one.host for one in found] == ["local-1", "local-2", "head"]
    assert all("copied" not in one.commands[0] for one in found)
    assert "--rpc 127.0.0.1:50052,127.0.0.1:50053" in last_words(found)["head"]


def test_a_taken_port_is_passed_over(case: Case) -> None:
    """The ports are those that `up` would take now."""
    taken = {"listening": "0214140A:C384"}
    case.world.hosts[FIRST].facts = facts("w", changes=taken)
    assert f"--host {FIRST} --port 50053" in last_words(case.run())[FIRST]


def test_what_stands_after_the_dashes_is_told(case: Case) -> None:
    """Options for llama-server stand at the end of the head's command."""
    case.wish = replace(case.wish, extra=("--metrics",))
    assert last_words(case.run())["head"].endswith("--metrics")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": "/none.gguf"}, ModelMissingError),
        ({"workers": (FIRST, FIRST)}, WorkerAddressError),
        ({"template": Path("/none.jinja")}, TemplateError),
    ],
    ids=["model", "workers", "template"],
)
def test_what_would_stop_up_stops_it(
    case: Case, changes: dict[str, object], error: type[Exception]
) -> None:
    """The same error is raised as `up` would raise, and nothing was done."""
    case.wish = replace(case.wish, **changes)  # type: ignore[arg-type]
    with pytest.raises(error):
        case.run()
    assert case.world.alive() == []


def test_a_model_that_does_not_fit_is_told(case: Case) -> None:
    """The plan for what the hosts show now decides."""
    for host in case.world.everywhere():
        small = {"memory": "MemTotal: 1000 kB\nMemAvailable: 10 kB"}
        host.facts = facts(host.name, changes=small)
    with pytest.raises(PlacementError):
        case.run()


def test_two_names_of_one_machine_are_refused(case: Case) -> None:
    """A machine reached by two names is no two workers here either."""
    case.world.hosts[SECOND].peer_address = FIRST
    with pytest.raises(WorkerAddressError, match=f"same machine as {FIRST}"):
        case.run()


def test_each_machine_is_looked_at_once(case: Case) -> None:
    """Workers beside the head share its engine, and what is said of it is said once."""
    case.wish = replace(case.wish, workers=("local:2",))
    case.request = replace(case.request, backend=None)
    events, found = collect(dry_run(case.world.seams(), case.wish, case.request))
    assert len({one.commands[0] for one in found}) == 1
    (told,) = (event.text for event in events if isinstance(event, Warned))
    assert told.startswith("nvcc 13.0 is on this machine but no NVIDIA driver answers")


def test_keys_that_cannot_be_read_are_told(case: Case, tmp_path: Path) -> None:
    """A key file that would stop `up` stops its dry run, too."""
    case.wish = replace(case.wish, api_key_file=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"head\.api_key_file: .* cannot be read: No such file"):
        case.run()


def test_an_unreachable_worker_is_named(case: Case) -> None:
    """A host that does not answer is no reason to guess."""
    case.world.hosts[SECOND].reachable = False
    with pytest.raises(HostUnreachableError, match=SECOND):
        case.run()


def test_a_host_that_cannot_have_the_engine_is_named(case: Case) -> None:
    """A wished backend that a worker cannot have is told before anything is copied."""
    case.world.hosts[SECOND].on("section machine", without_nvcc(PROBE))
    case.request = replace(case.request, backend=Backend.CUDA, architectures=("90",))
    with pytest.raises(ToolchainError, match=SECOND):
        case.run()


def test_a_source_that_is_none_is_told(case: Case, tmp_path: Path) -> None:
    """A folder without llama.cpp stops it as it would stop a build."""
    (tmp_path / "empty").mkdir()
    case.request = replace(case.request, source=tmp_path / "empty")
    with pytest.raises(SourceError):
        case.run()
