"""Building on this machine, with stand-ins for the tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.build_id import Backend
from ggufcluster.core.recipe import TARGETS
from ggufcluster.errors import BuildError, EngineMissingError, ToolchainError
from ggufcluster.workflows.build import BuildRequest, build_engine, built_engine
from ggufcluster.workflows.events import Event, Note, Progress, Warned, Workflow, drain
from tests.waiting import is_gone, wait_for
from tests.workflows.sources import host_paths, make_archive, make_vendor
from tests.workflows.toolbox import install_tools, use_only

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

LOCAL = LocalRemote()
LOGS = Path(__file__).parent.parent / "data" / "build_logs"


@dataclass(frozen=True)
class Bench:
    """A temporary machine to build on."""

    root: Path
    request: BuildRequest

    @property
    def cache(self) -> Path:
        """Return the cache folder."""
        return self.root / "cache"

    def start(self, request: BuildRequest | None = None) -> Workflow[Engine]:
        """Start a build without running it."""
        return build_engine(LOCAL, request or self.request, paths=host_paths(self.root))

    def build(self, request: BuildRequest | None = None) -> Engine:
        """Build to the end."""
        return drain(self.start(request))

    def arguments(self) -> list[str]:
        """Return what the last unfinished build gave to CMake."""
        [file] = (self.cache / "builds").glob("*/*/arguments")
        return file.read_text().splitlines()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a machine with a C++ compiler, cmake and ninja, and a small pinned source."""
    use_only(install_tools(tmp_path / "tools"), monkeypatch)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    archive = make_archive(tmp_path / "given" / "llama_cpp_python-9.9.9.tar.gz")
    vendor = make_vendor(tmp_path / "vendor", archive)
    return Bench(tmp_path, BuildRequest(Backend.CPU, source=archive, vendor=vendor))


def events_of(workflow: Workflow[Engine]) -> list[Event]:
    """Run a workflow and return its events."""
    return list(workflow)


def test_engine_is_published_whole(bench: Bench) -> None:
    """Programs, libraries with their links, and the record are in the folder of the build id."""
    engine = bench.build()
    folder = Path(engine.folder)
    record = json.loads((folder / "build.json").read_text())

    assert folder == bench.cache / "engines" / engine.build_id
    assert {path.name for path in (folder / "bin").iterdir()} == {
        *TARGETS,
        "libllama.so",
        "libllama.so.0.1",
    }
    assert (folder / "bin" / "libllama.so").readlink() == Path("libllama.so.0.1")
    assert record["build_id"] == engine.build_id
    assert record["tools"]["cmake"] == "3.28.3"
    assert os.access(engine.program("llama-server"), os.X_OK)


def test_record_holds_hashes_that_fit(bench: Bench) -> None:
    """Sizes and SHA-256 of the record are those of the files."""
    folder = Path(bench.build().folder)
    files = json.loads((folder / "build.json").read_text())["files"]
    sums = "".join(f"{file['sha256']}  bin/{file['path']}\n" for file in files if "size" in file)
    check = subprocess.run(
        ["sha256sum", "-c", "-"], input=sums.encode(), cwd=folder, capture_output=True, check=False
    )

    assert check.returncode == 0
    assert len(sums.splitlines()) == len(TARGETS) + 1


def test_nothing_but_log_and_lock_is_left(bench: Bench) -> None:
    """After success neither build folder nor staging folder remains."""
    engine = bench.build()

    assert {path.name for path in (bench.cache / "builds").iterdir()} == {
        "lock",
        f"{engine.build_id}.log",
    }
    assert [path.name for path in (bench.cache / "engines").iterdir()] == [engine.build_id]


def test_published_engine_is_returned_at_once(bench: Bench) -> None:
    """A second call builds nothing, even without any tool or source."""
    engine = bench.build()
    for tool in (bench.root / "tools").iterdir():
        tool.unlink()

    assert events_of(bench.start()) == []
    assert bench.build() == engine


def test_a_built_engine_is_found_and_none_is_built(bench: Bench) -> None:
    """Whoever only uses an engine gets the one that is built, and else an error that names it."""

    def find(request: BuildRequest) -> Engine:
        return drain(built_engine(LOCAL, request, paths=host_paths(bench.root)))

    with pytest.raises(EngineMissingError, match=str(bench.cache / "engines")) as missing:
        find(bench.request)
    assert not bench.cache.exists()
    engine = bench.build()
    assert missing.value.build_id == engine.build_id
    assert find(bench.request) == engine
    with pytest.raises(EngineMissingError):
        find(replace(bench.request, native=False))
    Path(engine.program("llama-server")).write_text("short")
    with pytest.raises(EngineMissingError):
        find(bench.request)


def test_damaged_engine_is_replaced(bench: Bench) -> None:
    """An engine with a short file is built again under the same name."""
    engine = bench.build()
    Path(engine.program("llama-server")).write_text("short")

    assert bench.build() == engine
    assert "echo" in Path(engine.program("llama-server")).read_text()


def test_progress_follows_ninja(bench: Bench) -> None:
    """Ninja's own counts become steps."""
    label = "Building the cpu engine on this machine"
    steps = [event for event in events_of(bench.start()) if getattr(event, "label", "") == label]

    assert Progress(label, 1, 4) in steps
    assert Progress(label, 4, 4) in steps


def test_user_setting_of_ninja_does_not_hide_progress(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NINJA_STATUS of the user's is not used."""
    monkeypatch.setenv("NINJA_STATUS", "%p ")
    steps = [event for event in events_of(bench.start()) if isinstance(event, Progress)]

    assert steps[-1].total == 4


def test_compile_error_shows_its_lines_and_keeps_the_log(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error carries the failing lines and the path of a log that holds all of them."""
    monkeypatch.setenv("FAKE_NINJA", f"fail {LOGS / 'compile.txt'}")
    with pytest.raises(BuildError) as caught:
        bench.build()

    assert caught.value.stage == "compile"
    assert any("error: 'undeclared'" in line for line in caught.value.excerpt)
    assert "ninja: build stopped" in Path(caught.value.log).read_text()
    assert list((bench.cache / "engines").iterdir()) == []


def test_failed_build_is_resumed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled before the error is not compiled again."""
    monkeypatch.setenv("FAKE_NINJA", f"fail {LOGS / 'compile.txt'}")
    with pytest.raises(BuildError):
        bench.build()
    monkeypatch.delenv("FAKE_NINJA")
    engine = bench.build()

    assert "resumed" in (bench.cache / "builds" / f"{engine.build_id}.log").read_text()


def compilers(bench: Bench) -> list[int]:
    """Return the process numbers that hanging compilers have written down."""
    texts = [file.read_text().strip() for file in (bench.cache / "builds").glob("*/*/pid")]
    return [int(text) for text in texts if text]


def hanging(bench: Bench) -> tuple[Workflow[Engine], int]:
    """Run a build until its compiler hangs; return it and the compiler's process number."""
    work = bench.start()
    for event in work:
        if event == Progress("Building the cpu engine on this machine", 1, 4):
            break
    wait_for(lambda: bool(compilers(bench)), what="the compiler")
    return work, compilers(bench)[0]


def test_abandoned_build_ends_its_compilers_and_is_resumed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C leaves no process, keeps the build folder, and the next build goes on there."""
    monkeypatch.setenv("FAKE_NINJA", "hang")
    work, pid = hanging(bench)
    work.close()
    wait_for(lambda: is_gone(pid), what="the end of the compiler")
    monkeypatch.delenv("FAKE_NINJA")
    engine = bench.build()

    assert "resumed" in (bench.cache / "builds" / f"{engine.build_id}.log").read_text()


def test_second_builder_waits_for_the_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one builds, another says for whom it waits, and then builds in its turn."""
    monkeypatch.setenv("FAKE_NINJA", "hang")
    first, _ = hanging(bench)
    monkeypatch.delenv("FAKE_NINJA")
    second = bench.start()
    waiting = next(event for event in second if isinstance(event, Note))
    first.close()

    assert "waiting on this machine for the build of process" in waiting.text
    assert drain(second).build_id in waiting.text


def test_make_builds_where_ninja_is_missing(bench: Bench) -> None:
    """A machine with make alone can build as well."""
    (bench.root / "tools" / "ninja").unlink()
    install_tools(bench.root / "tools", "make")

    assert bench.build().backend is Backend.CPU


@pytest.mark.parametrize("tool", ["c++", "cmake", "ninja"])
def test_missing_tool_is_told_before_anything_is_fetched(bench: Bench, tool: str) -> None:
    """The error names the tool; no source was unpacked for nothing."""
    (bench.root / "tools" / tool).unlink()
    with pytest.raises(ToolchainError) as caught:
        bench.build()

    assert caught.value.tool == tool
    assert not (bench.cache / "sources").exists()


def test_tools_beside_the_interpreter_are_found(bench: Bench) -> None:
    """What pip installed into our environment is used where PATH has nothing."""
    for tool in ("cmake", "ninja"):
        (bench.root / "tools" / tool).unlink()
    install_tools(bench.root / "venv", "cmake", "ninja")

    assert bench.build().backend is Backend.CPU


def test_cuda_build_without_gpu_is_allowed_and_warned_about(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head without a GPU may build for its workers' architecture."""
    install_tools(bench.root / "tools", "nvcc")
    monkeypatch.setenv("FAKE_NINJA", f"fail {LOGS / 'nvcc.txt'}")
    request = BuildRequest(
        architectures=("121",), source=bench.request.source, vendor=bench.request.vendor
    )
    work = bench.start(request)
    first = next(work)
    with pytest.raises(BuildError, match="compile"):
        drain(work)

    assert isinstance(first, Warned)
    assert "-DCMAKE_CUDA_ARCHITECTURES=121a-real" in bench.arguments()
    assert f"-DCMAKE_CUDA_COMPILER={bench.root}/tools/nvcc" in bench.arguments()


def test_rests_of_dead_processes_are_swept(bench: Bench) -> None:
    """Staging folders of processes that no longer live go; what others own stays."""
    engines = bench.cache / "engines"
    dead = engines / f".partial-build-x-{2**22 + 1}"
    living = engines / f".partial-source-x-{os.getpid()}"
    old, fresh = engines / "x.partial-AAAA", engines / "x.partial-BBBB"
    for folder in (dead, living, old, fresh):
        folder.mkdir(parents=True)
    os.utime(old, (1, 1))
    bench.build()

    assert [folder.exists() for folder in (dead, living, old, fresh)] == [False, True, False, True]
