"""Say what `up` would run on each host, without starting, copying or writing anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.build_id import build_id
from ggufcluster.core.devices import WorkerMemory, worker_devices
from ggufcluster.core.host import free_port
from ggufcluster.core.launch import server_command, worker_command
from ggufcluster.core.plan import make_plan
from ggufcluster.core.worker_address import LocalWorkers, parse_worker
from ggufcluster.workflows import workers
from ggufcluster.workflows.build import (
    BuildRequest,
    BuildSite,
    choose_options,
    find_engine,
    probe_host,
)
from ggufcluster.workflows.choose_template import choose_template
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.models import find_model, read_model
from ggufcluster.workflows.source import locate_source, read_vendor, source_fingerprint

if TYPE_CHECKING:
    from ggufcluster.core.paths import HostPaths
    from ggufcluster.core.wish import Wish
    from ggufcluster.core.worker_address import WorkerAddress
    from ggufcluster.workflows.events import Workflow
    from ggufcluster.workflows.machines import Machine
    from ggufcluster.workflows.seams import Seams


@dataclass(frozen=True, slots=True)
class HostCommands:
    """Commands for one host, in order; lines that start with # say what else happens there."""

    host: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Planned:
    """A worker as it would be: its machine, where it would listen and its memory."""

    name: str
    machine: Machine
    address: str
    port: int
    local: bool

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{self.port}"

    @property
    def memory(self) -> WorkerMemory:
        facts = self.machine.facts
        place = "local" if self.local else self.name
        memory = ((facts.memory_available, facts.memory_total),)
        return WorkerMemory(self.name, place, memory, gpu=bool(facts.gpus))


def dry_run(
    seams: Seams, wish: Wish, request: BuildRequest, paths: HostPaths
) -> Workflow[list[HostCommands]]:
    """Return the commands of each host, workers first.

    Hosts are only read. The real split follows the memory that the workers report once they run;
    here it follows what the hosts show now.

    Raises:
        GgufClusterError: Whatever would stop `up` before it starts anything.
    """
    head = survey(seams.local)
    path = find_model(wish.model, Path(head.paths.models))
    model = read_model(path)
    planned = _plan_workers(seams, head, wish)
    template = yield from choose_template(
        wish, model.template, path, remote=head.remote, state=Path(head.paths.state), write=False
    )
    plan = make_plan(
        replace(wish, template=template.file),
        model,
        PurePosixPath(path),
        devices=worker_devices([worker.memory for worker in planned]),
        endpoints=[worker.endpoint for worker in planned],
    )
    result = []
    for worker in planned:
        site = BuildSite(worker.machine.remote, worker.machine.paths)
        folder, notes = yield from _engine(site, request, copied=not worker.local)
        program = worker_command(
            bin_folder=folder / "bin", address=worker.address, port=worker.port
        )
        result.append(HostCommands(worker.name, (*notes, program.shown())))
    folder, notes = yield from _engine(BuildSite(seams.local, paths), request, copied=False)
    program = server_command(plan.spec, bin_folder=folder / "bin")
    result.append(HostCommands("head", (*notes, program.shown())))
    return result


def _plan_workers(seams: Seams, head: Machine, wish: Wish) -> list[_Planned]:
    found: list[_Planned] = []
    taken: dict[str, set[int]] = {}
    for address in (parse_worker(text) for text in wish.workers):
        for name, machine, where in _places(seams, head, address, allow_public=wish.allow_public):
            ports = taken.setdefault(where, set(machine.facts.listening))
            port = free_port(workers.FIRST_PORT, frozenset(ports)) or workers.FIRST_PORT
            ports.add(port)
            found.append(_Planned(name, machine, where, port, local=machine is head))
    return found


def _places(
    seams: Seams, head: Machine, address: WorkerAddress, *, allow_public: bool
) -> list[tuple[str, Machine, str]]:
    if isinstance(address, LocalWorkers):
        return [(name, head, "127.0.0.1") for name in workers.local_names(address.count)]
    remote = seams.connect(address)
    where = workers.worker_address(remote, address, allow_public=allow_public)
    return [(address.host, survey(remote), where)]


def _engine(
    site: BuildSite, request: BuildRequest, *, copied: bool
) -> Workflow[tuple[PurePosixPath, tuple[str, ...]]]:
    vendor = read_vendor(request.vendor)
    source = locate_source(vendor.pin, request.source)
    host = probe_host(site)
    options = yield from choose_options(host, request)
    name = build_id(source_fingerprint(source, vendor), options, host.machine)
    folder = site.paths.engines / name
    if find_engine(site.remote, folder):
        return folder, ()
    how = "copied from the head, or built" if copied else "built"
    return folder, (f"# engine {name} is missing and would be {how} first",)
