"""The engine that the build workflow makes from the real source."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.build_id import Backend
from ggufcluster.core.paths import paths_from_env
from ggufcluster.core.recipe import TARGETS
from ggufcluster.workflows.build import BuildRequest, build_engine, missing_libraries
from ggufcluster.workflows.source import locate_source, read_vendor, source_fingerprint

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

LOCAL = LocalRemote()


@pytest.fixture
def moved(engine: Engine, tmp_path: Path) -> Engine:
    """Return the engine copied to another place."""
    folder = tmp_path / "moved"
    shutil.copytree(engine.folder, folder, symlinks=True)
    return replace(engine, folder=PurePosixPath(folder))


def output_of(engine: Engine, program: str, *arguments: str) -> str:
    """Run a program of the engine and return all that it says."""
    environment = {name: text for name, text in os.environ.items() if name != "LD_LIBRARY_PATH"}
    words = [str(engine.program(program)), *arguments]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return result.stdout + result.stderr


def test_every_target_is_there(engine: Engine) -> None:
    """All programs that the other parts call were built."""
    assert [name for name in TARGETS if not os.access(engine.program(name), os.X_OK)] == []


def test_engine_bears_the_fingerprint_of_the_shipped_vendor_folder(engine: Engine) -> None:
    """Name of the folder and of the source are those that the vendor folder gives."""
    vendor = read_vendor()
    fingerprint = source_fingerprint(locate_source(vendor.pin), vendor)

    assert engine.fingerprint == fingerprint
    assert engine.build_id.startswith(f"{fingerprint}-cpu-")


@pytest.mark.parametrize("program", ["llama-server", "ggml-rpc-server"])
def test_version_names_build(engine: Engine, program: str) -> None:
    """Head and worker programs tell which build they are."""
    assert engine.build_id in output_of(engine, program, "--version")


def test_moved_engine_runs_with_its_own_libraries(moved: Engine) -> None:
    """Nothing points back to where it was built or published."""
    text = subprocess.run(
        ["ldd", moved.program("llama-server")], capture_output=True, text=True, check=True
    ).stdout
    own = [line for line in text.splitlines() if "libggml" in line or "libllama" in line]

    assert moved.build_id in output_of(moved, "llama-server", "--version")
    assert own
    assert [line for line in own if f"=> {moved.bin}/" not in line] == []


def test_nothing_is_missing(engine: Engine) -> None:
    """The loader finds every library of every program."""
    assert missing_libraries(LOCAL, engine) == ()


def test_second_build_does_nothing(engine: Engine) -> None:
    """A published engine comes back without an event."""
    paths = replace(paths_from_env(os.environ), cache=engine.folder.parents[1])

    assert list(build_engine(LOCAL, BuildRequest(Backend.CPU), paths=paths)) == []
    assert Path(engine.folder).is_relative_to(str(paths.engines))
