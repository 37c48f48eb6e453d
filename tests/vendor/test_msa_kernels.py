"""The CUDA kernels of sparse attention compile for what we build for, and keep to registers.

A spill in these kernels goes unnoticed otherwise: results stay right, and they are slower.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from ggufcluster.core.cuda import architectures_for
from tests.vendor.msa_reference import OVERLAY

ARCHITECTURES: Final = architectures_for(["90", "121"])
SOURCES: Final = sorted(OVERLAY.glob("ggml/src/ggml-cuda/msa-*.cu"))
# What upstream's build of ggml-cuda passes; fast math changes how many registers are needed.
FLAGS: Final = [
    "-std=c++17",
    "-O3",
    "-use_fast_math",
    "-extended-lambda",
    "-Werror",
    "all-warnings",
]
# Taken before a test changes HOME: the compiler's cache outlives the tests.
ENVIRONMENT: Final = dict(os.environ)
OLDEST: Final = (12, 9)
ENTRY: Final = re.compile(
    r"Compiling entry function '(?P<name>.+?)' for 'sm_(?P<architecture>\w+)'\n"
    r".*\n.* (?P<stored>\d+) bytes spill stores, (?P<loaded>\d+) bytes spill loads"
)
EVERY_FILE: Final = pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
EVERY_ARCHITECTURE: Final = pytest.mark.parametrize("architecture", ARCHITECTURES)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel in the assembler's report, with the bytes a thread writes to and reads back."""

    name: str
    architecture: str
    stored: int
    loaded: int


def kernels_in(report: str) -> list[Kernel]:
    """Read the assembler's report."""
    return [
        Kernel(found["name"], found["architecture"], int(found["stored"]), int(found["loaded"]))
        for found in ENTRY.finditer(report)
    ]


def version_of(nvcc: Path) -> tuple[int, ...]:
    """Ask nvcc which release it is."""
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"release (\d+)\.(\d+)", text)
    assert found is not None, text
    return tuple(map(int, found.groups()))


def find_nvcc() -> Path:
    """Find one that compiles for GB10: on PATH, at its usual place or in this environment."""
    on_path = shutil.which("nvcc")
    places = [
        *([Path(on_path)] if on_path else []),
        Path("/usr/local/cuda/bin/nvcc"),
        *Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/bin/nvcc"),
    ]
    for nvcc in places:
        if nvcc.exists() and version_of(nvcc) >= OLDEST:
            return nvcc
    pytest.skip(f"no nvcc of release {OLDEST[0]}.{OLDEST[1]} or newer: pip install '.[nvcc]'")


def compile_kernels(nvcc: Path, source: Path, architecture: str, folder: Path) -> str:
    """Compile a file for one architecture; return the assembler's report, names readable.

    Through ccache, where there is one: it keeps the report with the object, and a file that has not
    changed since the last run, nor what it includes, is not compiled for a minute again.
    """
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    paths = [str(folder / f"{source.stem}-{architecture}.o"), source.name]
    launcher = [found] if (found := shutil.which("ccache")) else []
    command = [*launcher, str(nvcc), *FLAGS, target, "-Xptxas", "-v", "-c", "-o", *paths]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=source.parent,  # the same names in every checkout
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    names = subprocess.run(
        ["c++filt"], input=done.stderr, capture_output=True, text=True, check=True
    )
    return names.stdout


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[Kernel]]:
    """All kernels by source, compiled once, as many at a time as there are cores."""
    nvcc, folder = find_nvcc(), tmp_path_factory.mktemp("kernels")
    found: dict[Path, list[Kernel]] = {source: [] for source in SOURCES}
    jobs = list(product(SOURCES, ARCHITECTURES))
    pool = ThreadPoolExecutor(min(len(jobs), os.cpu_count() or 1))
    with (folder.parents[1] / "kernels.lock").open("w") as lock, pool:
        # Another process that shares these tests then finds them in ccache.
        fcntl.flock(lock, fcntl.LOCK_EX)
        reports = pool.map(lambda job: compile_kernels(nvcc, job[0], job[1], folder), jobs)
        for (source, _), report in zip(jobs, reports, strict=True):
            found[source] += kernels_in(report)
    return found


def test_report_of_the_assembler_is_understood() -> None:
    """Name, architecture and spilled bytes of each kernel are read."""
    report = (
        "ptxas info    : Compiling entry function 'score(int)' for 'sm_90a'\n"
        "ptxas info    : Function properties for score(int)\n"
        "    8 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers\n"
        "ptxas info    : Compiling entry function 'choose()' for 'sm_121a'\n"
        "ptxas info    : Function properties for choose()\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    )

    assert kernels_in(report) == [
        Kernel("score(int)", "90a", 8, 12),
        Kernel("choose()", "121a", 0, 0),
    ]


def test_selection_and_attention_are_among_the_sources() -> None:
    """The files that hold the kernels lie where this test looks for them."""
    assert {"msa-attend.cu", "msa-select.cu"} <= {source.name for source in SOURCES}


@EVERY_ARCHITECTURE
@EVERY_FILE
def test_no_kernel_spills_registers(
    kernels: dict[Path, list[Kernel]], source: Path, architecture: str
) -> None:
    """Each file has kernels for each architecture, and none of them spills."""
    compiled = [kernel for kernel in kernels[source] if kernel.architecture == architecture]

    assert compiled
    assert [kernel for kernel in compiled if kernel.stored or kernel.loaded] == []
