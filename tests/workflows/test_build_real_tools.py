"""Building a tiny project with the real compiler, CMake and ninja."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.build_id import Backend
from ggufcluster.core.recipe import TARGETS
from ggufcluster.errors import BuildError
from ggufcluster.workflows.build import BuildRequest, build_engine
from ggufcluster.workflows.events import Progress, drain
from tests.workflows.sources import HOOK, host_paths, make_archive, make_vendor

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = LocalRemote()
LABEL = "Building the cpu engine on this machine"
PROGRAMS = "".join(
    f"add_executable({name} src/main.cpp)\ntarget_link_libraries({name} PRIVATE llama)\n"
    for name in TARGETS
)
TREE = {
    "CMakeLists.txt": f"""cmake_minimum_required(VERSION 3.19)
project(tiny C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${{CMAKE_BINARY_DIR}}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${{CMAKE_BINARY_DIR}}/bin)
add_library(llama ggml/src/ggml.c)
set_target_properties(llama PROPERTIES VERSION 0.1 SOVERSION 0)
{PROGRAMS}
add_executable(unwanted src/unwanted.cpp)
""",
    "ggml/src/ggml.c": "int one;\nint two;\nint three;\nint answer(void) { return hook; }\n",
    "src/main.cpp": 'extern "C" int answer();\nint main() { return answer(); }\n',
    "src/unwanted.cpp": "#error must not be built\n",
}

pytestmark = pytest.mark.skipif(
    not all(shutil.which(name) for name in ("c++", "cmake", "ninja")),
    reason="needs c++, cmake and ninja",
)


def request(tmp_path: Path, patch: str) -> BuildRequest:
    """Pin the tiny project with one patch."""
    archive = make_archive(tmp_path / "given" / "llama_cpp_python-9.9.9.tar.gz", TREE)
    vendor = make_vendor(tmp_path / "vendor", archive, patches={"hook.patch": patch})
    return BuildRequest(Backend.CPU, source=archive, vendor=vendor)


def test_moved_engine_runs_and_only_targets_were_built(tmp_path: Path) -> None:
    """The patched code runs from another folder, with its library found beside the program."""
    wanted = request(tmp_path, HOOK.replace("int hook;", "int hook = 42;"))
    events = list(build_engine(LOCAL, wanted, paths=host_paths(tmp_path)))
    engine = drain(build_engine(LOCAL, wanted, paths=host_paths(tmp_path)))
    moved = shutil.move(engine.folder, tmp_path / "moved")
    steps = [event for event in events if isinstance(event, Progress) and event.label == LABEL]

    assert subprocess.run([f"{moved}/bin/llama-server"], check=False).returncode == 42
    assert steps[-1].done == steps[-1].total


def test_compile_error_is_shown_with_its_place(tmp_path: Path) -> None:
    """A patch that does not compile leads to the compiler's own words."""
    with pytest.raises(BuildError) as caught:
        drain(
            build_engine(
                LOCAL,
                request(tmp_path, HOOK.replace("int hook;", "int hook = missing;")),
                paths=host_paths(tmp_path),
            )
        )

    assert any("ggml.c:3:12: error:" in line for line in caught.value.excerpt)
