"""Probes of a host's tools and the choice of backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ggufcluster.core.build_id import Backend
from ggufcluster.core.toolchain import (
    BuildHost,
    Tool,
    Toolchain,
    choose_backend,
    default_jobs,
    parse_gpus,
    parse_host,
    parse_tool,
    parse_tools,
    require_build_tools,
)
from ggufcluster.errors import ToolchainError

DATA = Path(__file__).parent.parent / "data" / "probes"


def captured_host(name: str) -> BuildHost:
    """Return a host from captured output."""
    return parse_host((DATA / name).read_text(), name="spark-2")


def captured_tools() -> Toolchain:
    """Return tools from captured output."""
    return parse_tools((DATA / "tools-debian12.txt").read_text(), host=SPARK)


SPARK = captured_host("host-spark.txt")
NO_GPU = captured_host("host-x86-cuda13.txt")
PLAIN = replace(NO_GPU, nvcc=None, nvcc_architectures=())


def test_host_probe_of_a_spark_is_read() -> None:
    """Driver, GPU, toolkit, RDMA header and libc are all found."""
    assert SPARK.machine.architecture == "aarch64"
    assert SPARK.machine.libc == "glibc 2.39"
    assert SPARK.machine.cuda_major == 13
    assert {"sve2", "i8mm", "bf16"} <= SPARK.machine.cpu_features
    assert SPARK.nvcc == Tool("/usr/local/cuda/bin/nvcc", "13.0")
    assert SPARK.driver == "580.95.05"
    assert SPARK.gpu_architectures == ("121",)
    assert SPARK.ibverbs


def test_host_without_gpu_is_read() -> None:
    """A toolkit without a driver is seen as just that."""
    assert NO_GPU.nvcc
    assert NO_GPU.nvcc_architectures[-1] == "121"
    assert (NO_GPU.driver, NO_GPU.gpu_architectures, NO_GPU.ibverbs) == (None, (), False)


def test_cuda_major_comes_from_the_libraries_without_nvcc() -> None:
    """A worker that only runs CUDA still tells its major version."""
    text = (DATA / "host-spark.txt").read_text()
    start, end = text.index("/usr/local/cuda/bin/nvcc"), text.index("@@ nvcc-list")

    assert parse_host(text[:start] + text[end:], name="w").machine.cuda_major == 13


def test_tools_are_read() -> None:
    """Paths and versions of compiler, cmake, ninja and make are found."""
    tools = captured_tools()

    assert tools.cxx == Tool("/usr/bin/c++", "12.2.0")
    assert tools.cmake == Tool("/usr/bin/cmake", "3.25.1")
    assert tools.builder == Tool("/usr/bin/ninja", "1.11.1")
    assert tools.cores == 2
    assert tools.versions() == {"c++": "12.2.0", "cmake": "3.25.1", "nvcc": "13.0"}


def test_absent_tool_is_none() -> None:
    """No output means no tool; a tool that does not tell its version is still one."""
    assert parse_tool("") is None
    assert parse_tool("/usr/bin/ninja\n") == Tool("/usr/bin/ninja", "unknown")


@pytest.mark.parametrize(
    "text", ["", "NVIDIA-SMI has failed because it couldn't communicate\n", "580.1, [N/A]\n"]
)
def test_no_gpu_is_seen_without_an_answer(text: str) -> None:
    """A driver that does not answer, or names no architecture, is no driver."""
    assert parse_gpus(text) == (None, ())


def test_several_gpus_are_listed_once() -> None:
    """Equal GPUs make one architecture, others are sorted by number."""
    assert parse_gpus("580.1, 12.0\n580.1, 9.0\n580.1, 12.0\n") == ("580.1", ("90", "120"))


def test_auto_takes_cuda_on_a_spark() -> None:
    """A GPU that nvcc compiles for is used."""
    choice = choose_backend(SPARK, None)

    assert (choice.backend, choice.architectures) == (Backend.CUDA, ("121a",))
    assert choice.warnings == ()


def test_auto_takes_cpu_without_gpu() -> None:
    """A toolkit without a GPU does not make a CUDA engine, but is mentioned."""
    choice = choose_backend(NO_GPU, None)

    assert choice.backend is Backend.CPU
    assert "no NVIDIA driver answers" in choice.warnings[0]
    assert choose_backend(PLAIN, None).warnings == ()


@pytest.mark.parametrize(
    ("host", "word"),
    [
        (replace(SPARK, nvcc=None), "nvcc"),
        (replace(SPARK, nvcc=Tool("/opt/nvcc", "12.4"), nvcc_architectures=()), "12.9 or newer"),
    ],
)
def test_auto_says_why_a_gpu_is_left_idle(host: BuildHost, word: str) -> None:
    """A GPU that nothing compiles for gets a CPU engine and a warning with the reason."""
    choice = choose_backend(host, None)

    assert choice.backend is Backend.CPU
    assert word in choice.warnings[0]


def test_architecture_asks_for_cuda_without_gpu() -> None:
    """A head without a GPU may build for its workers and is told that it cannot run it."""
    choice = choose_backend(NO_GPU, None, ["121"])

    assert (choice.backend, choice.architectures) == (Backend.CUDA, ("121a",))
    assert "will not run" in choice.warnings[0]


@pytest.mark.parametrize(
    ("host", "architectures", "word"),
    [
        (PLAIN, ["121"], "neither on PATH nor in /usr/local/cuda/bin"),
        (NO_GPU, [], "--arch"),
        (NO_GPU, ["70"], "sm_70"),
    ],
)
def test_explicit_cuda_fails_without_its_needs(
    host: BuildHost, architectures: list[str], word: str
) -> None:
    """CUDA that was asked for is never replaced by the CPU."""
    with pytest.raises(ToolchainError, match=word):
        choose_backend(host, Backend.CUDA, architectures)


def test_cpu_wins_when_asked_for() -> None:
    """A GPU does not matter to one who wants the CPU."""
    assert choose_backend(SPARK, Backend.CPU).backend is Backend.CPU


@pytest.mark.parametrize(
    ("tools", "tool", "word"),
    [
        (replace(captured_tools(), cxx=None), "c++", "apt install g\\+\\+"),
        (replace(captured_tools(), cmake=None), "cmake", "pip install cmake"),
        (replace(captured_tools(), ninja=None, make=None), "ninja", "ninja-build"),
        (replace(captured_tools(), cmake=Tool("/usr/bin/cmake", "3.16.3")), "cmake", "3.19"),
    ],
)
def test_missing_tool_is_named_with_its_host(tools: Toolchain, tool: str, word: str) -> None:
    """The error names tool and host and says what to install."""
    with pytest.raises(ToolchainError, match=word) as caught:
        require_build_tools(tools)

    assert (caught.value.tool, caught.value.host) == (tool, "spark-2")


def test_make_stands_in_for_ninja() -> None:
    """A worker without ninja builds with make."""
    tools = replace(captured_tools(), ninja=None)

    assert require_build_tools(tools)[1] == tools.make


@pytest.mark.parametrize(
    ("cores", "gib", "cuda", "jobs"),
    [
        (20, 110, True, 20),
        (20, 12, True, 6),
        (20, 12, False, 12),
        (2, 24, True, 2),
        (4, 0, True, 1),
    ],
)
def test_jobs_fit_cores_and_memory(cores: int, gib: int, cuda: bool, jobs: int) -> None:  # noqa: FBT001
    """Never more compilers than cores, nor than memory holds, and at least one."""
    tools = replace(captured_tools(), cores=cores, memory=gib << 30)

    assert default_jobs(tools, cuda=cuda) == jobs
