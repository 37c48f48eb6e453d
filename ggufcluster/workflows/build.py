"""Build the engine on a host and publish it under its build id."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from ggufcluster.core import build_script
from ggufcluster.core.build_id import Backend, BuildOptions, build_id
from ggufcluster.core.build_log import failing_lines, parse_step
from ggufcluster.core.cmake_args import cmake_arguments
from ggufcluster.core.engine import record_head
from ggufcluster.core.toolchain import (
    BuildHost,
    choose_backend,
    default_jobs,
    host_probe,
    parse_host,
    parse_tools,
    require_build_tools,
    tools_probe,
)
from ggufcluster.errors import (
    BuildError,
    EngineMissingError,
    RemoteCommandError,
    ToolchainError,
)
from ggufcluster.workflows.events import Finished, Note, Progress, Started, Warned, Workflow
from ggufcluster.workflows.source import (
    locate_source,
    prepare_tree,
    read_vendor,
    source_fingerprint,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.build_id import Pin
    from ggufcluster.core.build_script import BuildPlan
    from ggufcluster.core.engine import Engine
    from ggufcluster.core.paths import HostPaths
    from ggufcluster.core.toolchain import Toolchain
    from ggufcluster.workflows.source import Source, Vendor

_PROBE_SECONDS = 60.0
# One CUDA template instance may compile for many minutes without a line.
_QUIET_SECONDS = 3600.0
_LOG_LINES = 5000


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What the user wants built; the defaults fit the machine.

    Attributes:
        backend: None chooses, see `choose_backend`.
        architectures: CUDA architectures such as ``121``; empty means those of the GPUs found.
        jobs: Compilers to run at a time; None means as many as cores and memory allow.
        native: Use every instruction of the building machine's CPU.
        source: A llama.cpp tree or source archive to use instead of the pinned one.
        vendor: Folder with pin, series and overlay; None means those of the package.
    """

    backend: Backend | None = None
    architectures: tuple[str, ...] = ()
    jobs: int | None = None
    native: bool = True
    source: Path | None = None
    vendor: Path | None = None


@dataclass(frozen=True, slots=True)
class BuildSite:
    """A host to build on.

    Attributes:
        remote: The host.
        paths: Its folders.
        tools: A folder to look for tools in after PATH; may be empty.
    """

    remote: Remote
    paths: HostPaths
    tools: str = ""


@dataclass(frozen=True, slots=True)
class SourceOnSite:
    """The patched tree on the host that builds, and what it was made from."""

    folder: PurePosixPath
    fingerprint: str
    pin: Pin
    origin: str

    @property
    def commit(self) -> str:
        """Commit of llama.cpp, as far as it is known."""
        return self.pin.commit if self.origin == self.pin.origin else "other"


def build_engine(
    local: Remote, request: BuildRequest | None = None, *, paths: HostPaths
) -> Workflow[Engine]:
    """Have the engine for this machine: an earlier build if there is one, else a new one.

    Args:
        local: This machine.
        request: What to build; None means the default.
        paths: Folders of this machine.

    Raises:
        SourceError: The source cannot be had or is not the pinned one.
        PatchError: A patch does not apply.
        ToolchainError: A tool is missing or too old.
        BuildError: Compiling failed.
        DiskFullError: The source does not fit.
    """
    request = request or BuildRequest()
    site, vendor, source = _read_request(local, request, paths)
    fingerprint = source_fingerprint(source, vendor)
    host = probe_host(site)
    options = yield from choose_options(host, request)
    engine = find_engine(local, paths.engines / build_id(fingerprint, options, host.machine))
    if engine:
        return engine
    tools = probe_tools(site, host)  # before any download: a missing compiler is told at once
    tree = yield from prepare_tree(local, source, vendor, paths=paths)
    on_site = SourceOnSite(PurePosixPath(tree.folder), fingerprint, vendor.pin, source.origin)
    return (yield from compile_engine(site, on_site, options, tools=tools, jobs=request.jobs))


def built_engine(local: Remote, request: BuildRequest, *, paths: HostPaths) -> Workflow[Engine]:
    """Return the engine that `build_engine` would, if it is built already.

    Raises:
        EngineMissingError: It is not.
        SourceError: The source is not what it should be.
        ToolchainError: This machine cannot have what was asked for.
    """
    site, vendor, source = _read_request(local, request, paths)
    host = probe_host(site)
    options = yield from choose_options(host, request)
    name = build_id(source_fingerprint(source, vendor), options, host.machine)
    engine = find_engine(local, paths.engines / name)
    if engine is None:
        raise EngineMissingError(name, folder=str(paths.engines))
    return engine


def _read_request(
    local: Remote, request: BuildRequest, paths: HostPaths
) -> tuple[BuildSite, Vendor, Source]:
    vendor = read_vendor(request.vendor)
    site = BuildSite(local, paths, str(Path(sys.executable).parent))
    return site, vendor, locate_source(vendor.pin, request.source)


def probe_host(site: BuildSite) -> BuildHost:
    """Read what decides which engine a host needs."""
    result = site.remote.run(host_probe(site.tools), timeout=_PROBE_SECONDS, check=False)
    return parse_host(result.stdout, name=site.remote.name)


def probe_tools(site: BuildSite, host: BuildHost) -> Toolchain:
    """Read what a host builds with.

    Raises:
        ToolchainError: A tool is missing or too old.
    """
    result = site.remote.run(tools_probe(site.tools), timeout=_PROBE_SECONDS, check=False)
    tools = parse_tools(result.stdout, host=host)
    require_build_tools(tools)
    return tools


def choose_options(host: BuildHost, request: BuildRequest) -> Workflow[BuildOptions]:
    """Make every choice that the request left open.

    Raises:
        ToolchainError: The host cannot build what was asked for.
    """
    choice = choose_backend(host, request.backend, request.architectures)
    for warning in choice.warnings:
        yield Warned(warning)
    return BuildOptions(
        choice.backend, choice.architectures, rdma=host.ibverbs, native=request.native
    )


def find_engine(remote: Remote, folder: PurePosixPath) -> Engine | None:
    """Return the engine published in a folder; None if there is none or its files are damaged."""
    inspection = remote.run(build_script.inspect_command(folder), timeout=_PROBE_SECONDS)
    engine = build_script.parse_inspection(folder, inspection.stdout)
    return engine if engine and engine.build_id == folder.name else None


def missing_libraries(remote: Remote, engine: Engine) -> tuple[str, ...]:
    """Return what the loader of that host would not find for an engine, one line each."""
    command = build_script.missing_libraries_command(engine.folder)
    return tuple(remote.run(command, timeout=_PROBE_SECONDS).stdout.splitlines())


def compile_engine(
    site: BuildSite,
    source: SourceOnSite,
    options: BuildOptions,
    *,
    tools: Toolchain,
    jobs: int | None = None,
) -> Workflow[Engine]:
    """Compile and publish on a host that has the patched tree; resumes a broken-off build.

    One build runs at a time on a host. Abandoning the workflow ends the compilers and keeps what
    they made.

    Raises:
        ToolchainError: A tool is missing.
        BuildError: Compiling failed; its excerpt holds the failing lines.
    """
    plan = plan_build(site, source, options, tools=tools, jobs=jobs)
    for folder in (site.paths.engines, site.paths.cache / "sources"):
        site.remote.run(build_script.sweep_command(folder), timeout=_PROBE_SECONDS)
    if find_engine(site.remote, plan.engine) is None:
        # Whatever bears the name is damaged.
        site.remote.run(build_script.remove_command(plan.engine), timeout=_PROBE_SECONDS)
    yield from _run(site.remote, plan, options)
    engine = find_engine(site.remote, plan.engine)
    if engine is None:
        raise BuildError("publish", host=site.remote.name, log=str(plan.log), excerpt=())
    for line in missing_libraries(site.remote, engine):
        yield Warned(f"the engine will not run on {site.remote.name}: {line}")
    return engine


def plan_build(
    site: BuildSite,
    source: SourceOnSite,
    options: BuildOptions,
    *,
    tools: Toolchain,
    jobs: int | None = None,
) -> BuildPlan:
    """Decide what the build script is told.

    Raises:
        ToolchainError: A tool is missing.
    """
    cmake, builder = require_build_tools(tools)
    machine = tools.host.machine
    name = build_id(source.fingerprint, options, machine)
    return build_script.BuildPlan(
        cache=site.paths.cache,
        build_id=name,
        source=source.folder,
        cmake=cmake.path,
        builder=builder.path,
        jobs=jobs or default_jobs(tools, cuda=options.backend is Backend.CUDA),
        cmake_arguments=cmake_arguments(
            options,
            tools,
            fingerprint=source.fingerprint,
            build_id=name,
            commit=source.commit,
        ),
        record=record_head(
            build_id=name,
            fingerprint=source.fingerprint,
            pin=source.pin,
            origin=source.origin,
            options=options,
            machine=machine,
            tools=tools.versions(),
            built=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
    )


def _run(remote: Remote, plan: BuildPlan, options: BuildOptions) -> Workflow[None]:
    label = f"Building the {options.backend.value} engine on {remote.name}"
    yield Started(label)
    log: deque[str] = deque(maxlen=_LOG_LINES)
    stage = "prepare"
    try:
        with _lines(remote, plan) as lines:
            for line in lines:
                if told := build_script.marked(line):
                    stage = told[1] if told[0] == "step" else stage
                    yield from _tell(told, remote.name)
                    continue
                log.append(line)
                if step := parse_step(line):
                    yield Progress(label, step.done, step.total)
    except RemoteCommandError as error:
        excerpt = failing_lines(log)
        raise BuildError(stage, host=remote.name, log=str(plan.log), excerpt=excerpt) from error
    yield Finished(label, plan.build_id)


@contextlib.contextmanager
def _lines(remote: Remote, plan: BuildPlan) -> Iterator[Iterator[str]]:
    # Closed by us rather than by the garbage collector: closing it ends the compilers.
    stream = remote.stream(plan.command(), quiet_timeout=_QUIET_SECONDS)
    with contextlib.closing(cast("Generator[str, None, None]", stream)) as lines:
        yield lines


def _tell(told: tuple[str, str], host: str) -> Workflow[None]:
    word, rest = told
    if word == "waiting":
        yield Note(f"waiting on {host} for the build of {rest}")
    elif word == "missing":
        raise ToolchainError(rest, host=host, reason="not found: install util-linux")
