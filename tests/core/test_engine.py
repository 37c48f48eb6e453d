"""The record of an engine and who may take a copy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from ggufcluster.core.build_id import Backend, BuildOptions, Pin
from ggufcluster.core.engine import (
    Engine,
    binding_obstacle,
    copy_obstacles,
    read_engine,
    record_head,
)
from ggufcluster.core.machine import Machine
from ggufcluster.core.toolchain import BuildHost, Tool

SPARK = Machine("aarch64", "glibc 2.39", frozenset({"sve2"}), cuda_major=13)
OPTIONS = BuildOptions(Backend.CUDA, ("121a",), rdma=True)
FOLDER = PurePosixPath("/cache/engines/f00d-cuda-121a-aarch64-00000000")
FILES = """  {"path": "llama-server", "size": 5, "sha256": "aa"},
  {"path": "libllama.so.0", "size": 7, "sha256": "bb"},
  {"path": "libllama.so", "link": "libllama.so.0"}
 ]
}
"""
ENGINE = Engine(FOLDER, FOLDER.name, "f00d", OPTIONS, SPARK, size=12)
WORKER = BuildHost(
    "w",
    SPARK,
    nvcc=Tool("/usr/local/cuda/bin/nvcc", "13.0"),
    driver="580.95",
    gpu_architectures=("121",),
)


def record() -> str:
    """Return a whole record."""
    head = record_head(
        build_id=FOLDER.name,
        fingerprint="f00d",
        pin=Pin("0.3.36", "aa", "0c1e57098", "vendor/llama.cpp"),
        origin="sdist:aa",
        options=OPTIONS,
        machine=SPARK,
        tools={"c++": "13.3"},
        built="2026-11-30T08:00:00+00:00",
    )
    return head + FILES


def test_record_is_read_back() -> None:
    """Head and file list together are JSON from which the engine comes back."""
    sizes = "5 llama-server\n7 libllama.so.0\n99 extra\n"

    assert read_engine(FOLDER, record(), sizes) == ENGINE
    assert json.loads(record())["pin"]["commit"] == "0c1e57098"


@pytest.mark.parametrize(
    "sizes", ["", "5 llama-server\n", "5 llama-server\n6 libllama.so.0\n", "rubbish\n"]
)
def test_damaged_engine_is_none(sizes: str) -> None:
    """A file that is missing or short makes the engine unusable."""
    assert read_engine(FOLDER, record(), sizes) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": []}'])
def test_folder_without_record_is_none(text: str) -> None:
    """A folder without a whole record is no engine."""
    assert read_engine(FOLDER, text, "5 llama-server\n") is None


def test_programs_lie_in_bin() -> None:
    """A program's path is asked of the engine."""
    assert ENGINE.program("llama-server") == FOLDER / "bin" / "llama-server"


def test_equal_worker_takes_a_copy() -> None:
    """Nothing speaks against a copy between two equal Sparks."""
    assert copy_obstacles(ENGINE, WORKER, wanted=None) == ()


@pytest.mark.parametrize(
    ("worker", "word"),
    [
        (replace(WORKER, machine=replace(SPARK, libc="glibc 2.35")), "glibc 2.35"),
        (replace(WORKER, machine=replace(SPARK, cuda_major=12)), "CUDA 12"),
        (replace(WORKER, driver=None, gpu_architectures=()), "driver"),
        (replace(WORKER, gpu_architectures=("90",)), "sm_90"),
    ],
)
def test_unequal_worker_builds(worker: BuildHost, word: str) -> None:
    """Another libc, CUDA or GPU, or no driver, is named as the reason."""
    assert word in copy_obstacles(ENGINE, worker, wanted=None)[0]


def test_gpu_of_a_worker_is_not_left_idle() -> None:
    """A CPU head gives its engine to a GPU worker only if the CPU was asked for."""
    cpu = replace(ENGINE, options=BuildOptions(Backend.CPU))

    assert copy_obstacles(cpu, WORKER, wanted=Backend.CPU) == ()
    assert "sm_121" in copy_obstacles(cpu, WORKER, wanted=None)[0]
    assert copy_obstacles(cpu, replace(WORKER, nvcc=None), wanted=None) == ()


@pytest.mark.parametrize(
    ("pin", "origin", "words"),
    [
        ({}, None, None),
        ({"llama_cpp_python": "0.3.35"}, None, "0.3.36 is installed"),
        ({}, "tree:abc", "another llama.cpp"),
    ],
)
def test_bindings_need_the_engines_own_commit(
    pin: dict[str, str], origin: str | None, words: str | None
) -> None:
    """Bindings run on an engine of the pinned source and of their own version, and on no other."""
    values = {
        "llama_cpp_python": "0.3.36",
        "sdist_sha256": "ab" * 32,
        "commit": "0c1e57098",
        "sdist_subdir": "vendor/llama.cpp",
    } | pin
    pinned = f"sdist:{values['sdist_sha256']}:{values['sdist_subdir']}"
    record = json.dumps({"pin": values, "origin": origin or pinned})
    obstacle = binding_obstacle(record, "0.3.36")
    assert (obstacle is None) == (words is None)
    assert (words or "") in (obstacle or "")
