"""Say what `up` would run on each host, without starting, copying or writing anything."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.core.build_id import build_id
from ggufcluster.core.launch import server_command, worker_command
from ggufcluster.workflows.build import (
    BuildRequest,
    BuildSite,
    choose_options,
    find_engine,
    probe_host,
)
from ggufcluster.workflows.choose_template import choose_template
from ggufcluster.workflows.planning import look_at_head, plan_for_hosts
from ggufcluster.workflows.source import locate_source, read_vendor, source_fingerprint
from ggufcluster.workflows.status import read_key

if TYPE_CHECKING:
    from pathlib import PurePosixPath

    from ggufcluster.core.wish import Wish
    from ggufcluster.workflows.events import Workflow
    from ggufcluster.workflows.seams import Seams


@dataclass(frozen=True, slots=True)
class HostCommands:
    """Commands for one host, in order; lines that start with # say what else happens there."""

    host: str
    commands: tuple[str, ...]


def dry_run(seams: Seams, wish: Wish, request: BuildRequest) -> Workflow[list[HostCommands]]:
    """Return the commands of each host, workers first.

    Hosts are only read. The real split follows the memory that the workers report once they run;
    here it follows what the hosts show now.

    Raises:
        GgufClusterError: Whatever would stop `up` before it starts anything, but for a port that
            is taken: the cluster that is up now may have it.
    """
    read_key(str(wish.api_key_file) if wish.api_key_file else None)
    view = look_at_head(seams, wish)
    head = view.machine
    template = yield from choose_template(
        wish,
        view.model.template,
        view.path,
        remote=head.remote,
        state=Path(head.paths.state),
        write=False,
    )
    plan, planned = plan_for_hosts(
        seams, replace(wish, template=template.file), view, backend=request.backend
    )
    result = []
    engines: dict[str, tuple[PurePosixPath, tuple[str, ...]]] = {}
    for worker in planned:
        machine = worker.machine
        if machine.name not in engines:  # several workers may share one machine
            site = BuildSite(machine.remote, machine.paths)
            engines[machine.name] = yield from _engine(site, request, copied=not worker.local)
        folder, notes = engines[machine.name]
        program = worker_command(
            bin_folder=folder / "bin", address=worker.address, port=worker.port
        )
        result.append(HostCommands(worker.name, (*notes, program.shown())))
    if head.name not in engines:
        site = BuildSite(head.remote, head.paths)
        engines[head.name] = yield from _engine(site, request, copied=False)
    folder, notes = engines[head.name]
    program = server_command(plan.spec, bin_folder=folder / "bin")
    result.append(HostCommands("head", (*notes, program.shown())))
    return result


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
