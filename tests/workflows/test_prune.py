"""Freeing the disk of this machine, in a cache of its own."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.adapters.remote import CommandResult
from ggufcluster.errors import RemoteCommandError
from ggufcluster.testing import FakeRemote
from ggufcluster.workflows.build import BuildRequest
from ggufcluster.workflows.events import Finished, Progress, Started, Workflow
from ggufcluster.workflows.prune import Pruned, current_fingerprints, prune
from tests.workflows.fakes import collect
from tests.workflows.sources import host_paths, make_archive, make_vendor, write_texts

if TYPE_CHECKING:
    from collections.abc import Iterator

NEW, OLD = "0123456789abcdef", "fedcba9876543210"
CURRENT = frozenset({NEW})


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with two versions of everything, with a blank in its name."""
    folder = tmp_path / "my cache" / "ggufcluster"
    for name in (OLD, NEW):
        write_texts(
            folder,
            {
                f"engines/{name}-cpu-x86_64-1/bin/llama-server": "program",
                f"builds/{name}-cpu-x86_64-1/ninja/object": "object",
                f"builds/{name}-cpu-x86_64-1.log": "log",
                f"sources/{name}-tree/CMakeLists.txt": "text",
            },
        )
    write_texts(folder, {"builds/lock": "", "sources/llama_cpp_python-1.tar.gz": "archive"})
    return folder


def pruning(cache: Path, *, dry_run: bool = False) -> Workflow[Pruned]:
    """Begin to prune."""
    paths = replace(host_paths(cache.parent), cache=PurePosixPath(cache))
    return prune(LocalRemote(), paths, fingerprints=CURRENT, dry_run=dry_run)


def names(cache: Path) -> set[str]:
    """Return what lies in the cache, two levels deep."""
    return {str(path.relative_to(cache)) for path in cache.glob("*/*")}


def old_ones(paths: set[str]) -> set[str]:
    """Return those of the other version."""
    return {path for path in paths if OLD in path}


@pytest.mark.parametrize("folder", ["engines", "builds", "sources"])
def test_what_an_interrupted_removal_left_goes_too(cache: Path, folder: str) -> None:
    """It bears the number of a process that is gone; a dry run leaves it."""
    with subprocess.Popen(["true"]) as ended:
        pass
    left = cache / folder / f".partial-removed-{OLD}-cpu-x86_64-1-{ended.pid}"
    write_texts(left, {"bin/llama-server": "program"})
    collect(pruning(cache, dry_run=True))
    assert left.exists()
    collect(pruning(cache))
    assert not left.exists()


def test_what_is_old_goes_and_nothing_else(cache: Path) -> None:
    """Four things of the other version go, with their size and progress told."""
    before = names(cache)
    events, pruned = collect(pruning(cache))
    assert names(cache) == before - old_ones(before)
    assert {entry.path for entry in pruned.removed} == old_ones(before)
    assert len(old_ones(before)) == 4
    assert pruned.size > 0
    assert pruned.kept == ()
    assert isinstance(events[0], Started)
    last = [event for event in events if isinstance(event, Progress)][-1]
    assert (last.done, last.total) == (pruned.size, pruned.size)
    assert isinstance(events[-1], Finished)


def test_a_dry_run_only_looks(cache: Path) -> None:
    """The same is told and nothing is removed."""
    before = names(cache)
    events, pruned = collect(pruning(cache, dry_run=True))
    assert names(cache) == before
    assert {entry.path for entry in pruned.removed} == old_ones(before)
    assert events == []


def test_twice_there_is_nothing_to_do(cache: Path) -> None:
    """A second run finds nothing and says nothing."""
    collect(pruning(cache))
    events, pruned = collect(pruning(cache))
    assert (events, pruned.removed, pruned.size) == ([], (), 0)


def test_a_missing_cache_is_an_empty_one(tmp_path: Path) -> None:
    """A host on which nothing was ever built has nothing to free."""
    assert collect(pruning(tmp_path / "none"))[1].removed == ()


def test_an_engine_that_runs_stays(cache: Path, tmp_path: Path) -> None:
    """A process that runs from an old engine keeps it, though the cache is reached by a link."""
    program = cache / "engines" / f"{OLD}-cpu-x86_64-1" / "bin" / "llama-server"
    sleep = shutil.which("sleep")
    assert sleep
    shutil.copy(sleep, program)
    (tmp_path / "link").symlink_to(cache)
    with subprocess.Popen([program, "300"]) as process:
        try:
            _, pruned = collect(pruning(tmp_path / "link"))
        finally:
            process.kill()
    assert program.exists()
    reasons = {kept.entry.path: kept.reason for kept in pruned.kept}
    assert reasons[f"engines/{OLD}-cpu-x86_64-1"] == "a process runs from it"
    assert not (cache / "sources" / f"{OLD}-tree").exists()


def test_a_build_at_work_is_not_disturbed(cache: Path) -> None:
    """While the lock of builds is held, build folders and sources stay, and so it is told."""
    with locked(cache):
        _, pruned = collect(pruning(cache, dry_run=True))
    assert {kept.reason for kept in pruned.kept} == {"a build is at work"}
    assert [entry.path for entry in pruned.removed] == [f"engines/{OLD}-cpu-x86_64-1"]


def test_a_build_that_begins_meanwhile_is_not_disturbed(cache: Path) -> None:
    """One that takes the lock after the look stops the removal, which is told and no error."""
    before = names(cache)
    work = pruning(cache)
    next(work)
    with locked(cache):
        _, pruned = collect(work)
    assert names(cache) == before
    assert pruned.removed == ()
    assert {kept.reason for kept in pruned.kept} == {"a build has begun"}


def test_what_cannot_be_removed_is_an_error() -> None:
    """A host that refuses is named with its own words; what went before is gone."""
    entries = f"@cache /c\n@entry 5 engines/{OLD}-a\n@entry 6 engines/{OLD}-b\n"
    remote = FakeRemote(name="spark").on("@entry", entries).on("for old in .partial-", "")
    remote.on(f"engines/{OLD}-a", "removed\n")
    remote.on(f"engines/{OLD}-b", lambda _: CommandResult(1, "", "Read-only file system"))
    with pytest.raises(RemoteCommandError, match="Read-only"):
        collect(prune(remote, host_paths(Path("/x")), fingerprints=CURRENT))


def test_the_current_versions_are_the_pin_and_the_source(tmp_path: Path) -> None:
    """With a source of one's own, engines of both stay."""
    archive = make_archive(tmp_path / "llama_cpp_python-9.9.9.tar.gz")
    vendor = make_vendor(tmp_path / "vendor", archive)
    write_texts(tmp_path / "tree", {"CMakeLists.txt": "x", "ggml/src/ggml.c": "x", "src/a": "x"})
    pinned = current_fingerprints(BuildRequest(vendor=vendor))
    both = current_fingerprints(BuildRequest(vendor=vendor, source=tmp_path / "tree"))
    assert len(pinned) == 1
    assert len(both) == 2
    assert pinned < both


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Hold the lock of builds, as a build does."""
    with (cache / "builds" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
