"""Bring the engine to a worker: copied between equals, else built there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.adapters import files
from ggufcluster.core import build_script
from ggufcluster.core.build_id import build_id
from ggufcluster.core.command import command, script
from ggufcluster.core.engine import copy_obstacles
from ggufcluster.core.paths import PROBE, paths_from_probe
from ggufcluster.workflows.build import (
    BuildRequest,
    BuildSite,
    SourceOnSite,
    choose_options,
    compile_engine,
    find_engine,
    missing_libraries,
    probe_host,
    probe_tools,
)
from ggufcluster.workflows.events import Note, Workflow
from ggufcluster.workflows.source import (
    STAMP,
    locate_source,
    prepare_tree,
    read_vendor,
    source_fingerprint,
    tree_name,
)
from ggufcluster.workflows.transfer import transfer

if TYPE_CHECKING:
    from pathlib import PurePosixPath

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.engine import Engine
    from ggufcluster.core.paths import HostPaths
    from ggufcluster.core.toolchain import BuildHost

_SECONDS = 60.0
_UNPACK_SECONDS = 600.0


def deploy_engine(
    engine: Engine,
    remote: Remote,
    *,
    local: Remote,
    paths: HostPaths,
    request: BuildRequest | None = None,
) -> Workflow[Engine]:
    """Have an engine of the same fingerprint on a worker.

    One that is there is used; a worker equal to this machine gets a copy; on any other, the
    patched source is copied and built.

    Args:
        engine: The engine of this machine.
        remote: The worker.
        local: This machine.
        paths: Folders of this machine.
        request: As given to `build_engine`; its backend and architectures apply to workers of
            another kind as well.

    Raises:
        HostError: The worker cannot be reached, or a command on it failed.
        DiskFullError: The worker has too little space; nothing partial is left there.
        EngineError: It had to be built there and could not.
    """
    request = request or BuildRequest()
    site = BuildSite(remote, worker_paths(remote))
    host = probe_host(site)
    copied = yield from _use_or_copy(engine, site, host, request)
    if copied:
        return copied
    options = yield from choose_options(host, request)
    folder = site.paths.engines / build_id(engine.fingerprint, options, host.machine)
    if built := find_engine(remote, folder):
        return built
    tools = probe_tools(site, host)
    source = yield from _send_source(site, local, paths=paths, request=request)
    return (yield from compile_engine(site, source, options, tools=tools, jobs=request.jobs))


def worker_paths(remote: Remote) -> HostPaths:
    """Ask a host for its folders."""
    return paths_from_probe(remote.run(script(PROBE), timeout=_SECONDS).stdout)


def _use_or_copy(
    engine: Engine, site: BuildSite, host: BuildHost, request: BuildRequest
) -> Workflow[Engine | None]:
    if obstacles := copy_obstacles(engine, host, wanted=request.backend):
        yield Note(f"{host.name} needs its own build: {'; '.join(obstacles)}")
        return None
    target = site.paths.engines / engine.build_id
    if found := find_engine(site.remote, target):
        return found
    site.remote.run(build_script.sweep_command(site.paths.engines), timeout=_SECONDS)
    site.remote.run(build_script.remove_command(target), timeout=_SECONDS)
    folder = Path(engine.folder)
    yield from transfer(
        f"Copying the engine to {host.name}",
        engine.size,
        lambda told: site.remote.put_tree(folder, target, on_bytes=told),
    )
    return (yield from _checked_copy(site.remote, target))


def _checked_copy(remote: Remote, target: PurePosixPath) -> Workflow[Engine | None]:
    copied = find_engine(remote, target)
    missing = missing_libraries(remote, copied) if copied else ("it arrived damaged",)
    if not missing:
        return copied
    yield Note(f"{remote.name} cannot run the copied engine ({missing[0]}): building it there")
    remote.run(build_script.remove_command(target), timeout=_SECONDS)
    return None


def _send_source(
    site: BuildSite, local: Remote, *, paths: HostPaths, request: BuildRequest
) -> Workflow[SourceOnSite]:
    vendor = read_vendor(request.vendor)
    source = locate_source(vendor.pin, request.source)
    name = source_fingerprint(source, vendor)
    target = site.paths.cache / "sources" / tree_name(name)
    if not _has_source(site.remote, target, name):
        tree = yield from prepare_tree(local, source, vendor, paths=paths)
        yield from _send_tree(tree.folder, site.remote, target)
    return SourceOnSite(target, name, vendor.pin, source.origin)


def _has_source(remote: Remote, target: PurePosixPath, name: str) -> bool:
    stamp = command("cat", str(target / STAMP))
    return remote.run(stamp, timeout=_SECONDS, check=False).stdout == name


def _send_tree(folder: Path, remote: Remote, target: PurePosixPath) -> Workflow[None]:
    archive = folder.with_name(f"{folder.name}.tar.gz")
    if not archive.exists():
        files.pack_folder(folder, archive)
    remote_archive = target.with_name(archive.name)
    yield from transfer(
        f"Copying the source to {remote.name}",
        archive.stat().st_size,
        lambda told: remote.put(archive, remote_archive, on_bytes=told),
    )
    remote.run(build_script.unpack_command(remote_archive, target), timeout=_UNPACK_SECONDS)
