"""Bringing the engine to a worker, with stand-ins for tools and worker."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.build_id import Backend
from ggufcluster.errors import BuildError, DiskFullError, ToolchainError
from ggufcluster.workflows.build import BuildRequest, build_engine
from ggufcluster.workflows.deploy import deploy_engine, worker_paths
from ggufcluster.workflows.events import Event, Note, Progress, Unit, drain
from ggufcluster.workflows.source import tree_name
from tests.workflows.sources import host_paths, make_archive, make_vendor
from tests.workflows.toolbox import install_tools, use_only

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import PurePosixPath

    from ggufcluster.adapters.local import LocalProcess
    from ggufcluster.core.command import Command
    from ggufcluster.core.engine import Engine

LOCAL = LocalRemote()
OTHER_LIBC = '#!/bin/sh\n[ "$1" = GNU_LIBC_VERSION ] && echo glibc 2.17\n'
MISSING = "#!/bin/sh\necho '\tlibgomp.so.1 => not found'\n"


class Worker(LocalRemote):
    """Another host, as far as its own home, PATH and name make one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env: Mapping[str, str] = {
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "PATH": f"{home / 'tools'}:{home.parent / 'system'}",
        }

    @property
    def name(self) -> str:
        """Return a name as of a far host."""
        return "user@spark-2"

    def _start(self, command: Command, *, feed: bool, merge: bool = False) -> LocalProcess:
        return super()._start(
            replace(command, env={**self.env, **command.env}), feed=feed, merge=merge
        )

    def install(self, name: str, text: str) -> None:
        """Put a program on its PATH."""
        path = self.home / "tools" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def folder(self, name: str) -> list[str]:
        """List one of its cache folders."""
        folder = self.home / "cache" / "ggufcluster" / name
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@dataclass(frozen=True)
class Pair:
    """A head with its engine, and a worker without tools."""

    root: Path
    request: BuildRequest
    engine: Engine
    worker: Worker

    def deploy(self) -> tuple[Engine, list[Event]]:
        """Deploy to the worker; return its engine and the events."""
        events: list[Event] = []
        work = deploy_engine(
            self.engine,
            self.worker,
            local=LOCAL,
            paths=host_paths(self.root),
            request=self.request,
        )
        while True:
            try:
                events.append(next(work))
            except StopIteration as end:
                return end.value, events


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Return a head that has built its engine, and an equal worker."""
    use_only(install_tools(tmp_path / "tools"), monkeypatch)
    archive = make_archive(tmp_path / "given" / "llama_cpp_python-9.9.9.tar.gz")
    vendor = make_vendor(tmp_path / "vendor", archive)
    request = BuildRequest(Backend.CPU, source=archive, vendor=vendor)
    engine = drain(build_engine(LOCAL, request, paths=host_paths(tmp_path)))
    return Pair(tmp_path, request, engine, Worker(tmp_path / "worker"))


def bytes_copied(events: list[Event]) -> int:
    """Return how many bytes the events tell of."""
    steps = [event for event in events if isinstance(event, Progress)]
    return max((step.done for step in steps if step.unit is Unit.BYTES), default=0)


def test_equal_worker_gets_a_copy(pair: Pair) -> None:
    """The whole engine arrives, links and modes included, with progress in bytes."""
    engine, events = pair.deploy()
    ours, theirs = Path(pair.engine.folder), Path(engine.folder)

    assert theirs == pair.worker.home / "cache" / "ggufcluster" / "engines" / engine.build_id
    assert (theirs / "build.json").read_bytes() == (ours / "build.json").read_bytes()
    assert (theirs / "bin" / "libllama.so").is_symlink()
    assert bytes_copied(events) >= pair.engine.size
    assert pair.worker.folder("engines") == [engine.build_id]


def test_second_deployment_copies_nothing(pair: Pair) -> None:
    """An engine that is there and whole is used without an event."""
    first, _ = pair.deploy()
    second, events = pair.deploy()

    assert (second, events) == (first, [])


def test_damaged_copy_is_replaced(pair: Pair) -> None:
    """A copy with a short file is copied anew."""
    engine, _ = pair.deploy()
    Path(engine.program("llama-server")).write_text("")
    again, events = pair.deploy()

    assert Path(again.program("llama-server")).read_text() != ""
    assert bytes_copied(events) > 0


def test_worker_paths_are_its_own(pair: Pair) -> None:
    """Folders are those of the worker's user, not ours."""
    assert str(worker_paths(pair.worker).cache) == str(pair.worker.home / "cache" / "ggufcluster")


@pytest.mark.parametrize("builder", ["ninja", "make"])
def test_other_libc_is_built_there(pair: Pair, builder: str) -> None:
    """The source is sent, built by the worker's own tools, and the reason is told."""
    install_tools(pair.worker.home / "tools", "c++", "cmake", builder)
    pair.worker.install("getconf", OTHER_LIBC)
    engine, events = pair.deploy()

    assert engine.machine.libc == "glibc 2.17"
    assert engine.fingerprint == pair.engine.fingerprint
    assert engine.build_id != pair.engine.build_id
    assert events[0] == Note(
        f"user@spark-2 needs its own build: glibc 2.17 instead of {pair.engine.machine.libc}"
    )
    assert pair.worker.folder("sources") == [tree_name(engine.fingerprint)]


def test_engine_built_there_is_used_again(pair: Pair) -> None:
    """A second deployment neither sends nor builds."""
    install_tools(pair.worker.home / "tools")
    pair.worker.install("getconf", OTHER_LIBC)
    first, _ = pair.deploy()
    second, events = pair.deploy()

    assert second == first
    assert [event for event in events if not isinstance(event, Note)] == []


def test_worker_without_tools_names_them(pair: Pair) -> None:
    """If it must build and cannot, host and tool are named and nothing was sent."""
    install_tools(pair.worker.home / "tools", "c++")
    pair.worker.install("getconf", OTHER_LIBC)
    with pytest.raises(ToolchainError, match="user@spark-2") as caught:
        pair.deploy()

    assert caught.value.tool == "cmake"
    assert pair.worker.folder("sources") == []


def test_failed_build_there_names_host_and_log(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error tells on which host the log lies."""
    install_tools(pair.worker.home / "tools")
    pair.worker.install("getconf", OTHER_LIBC)
    monkeypatch.setenv("FAKE_NINJA", "fail /dev/null")
    with pytest.raises(BuildError, match="user@spark-2") as caught:
        pair.deploy()

    assert caught.value.log.startswith(str(pair.worker.home))


def test_copy_that_cannot_run_is_replaced_by_a_build(pair: Pair) -> None:
    """If a library is missing there, the copy goes, and the reason is told."""
    pair.worker.install("ldd", MISSING)
    with pytest.raises(ToolchainError):
        pair.deploy()

    assert pair.worker.folder("engines") == []


def test_full_disk_leaves_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that does not fit is an error of that host, and no engine appears."""

    def full(
        source: Path, target: PurePosixPath, *, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        raise DiskFullError("user@spark-2", path=str(target), need=100, free=1)

    monkeypatch.setattr(pair.worker, "put_tree", full)
    with pytest.raises(DiskFullError):
        pair.deploy()

    assert pair.worker.folder("engines") == []


def test_interrupted_unpacking_is_done_again(pair: Pair) -> None:
    """A half-unpacked source of a dead process is neither used nor kept."""
    install_tools(pair.worker.home / "tools")
    pair.worker.install("getconf", OTHER_LIBC)
    sources = pair.worker.home / "cache" / "ggufcluster" / "sources"
    half = sources / f".partial-source-{pair.engine.fingerprint}-{2**22 + 1}"
    half.mkdir(parents=True)
    pair.deploy()

    assert pair.worker.folder("sources") == [tree_name(pair.engine.fingerprint)]


def test_head_without_its_source_fetches_it_for_the_worker(pair: Pair) -> None:
    """The head's own source folder may be gone: it is prepared again when needed."""
    install_tools(pair.worker.home / "tools")
    pair.worker.install("getconf", OTHER_LIBC)
    shutil.rmtree(pair.root / "cache" / "sources")

    assert pair.deploy()[0].fingerprint == pair.engine.fingerprint
