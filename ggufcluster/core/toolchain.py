"""Build tools of one host: a probe, its pure parsers, and the choice of backend."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.build_id import Backend
from ggufcluster.core.command import Command, script
from ggufcluster.core.cuda import architectures_for, check_nvcc, parse_architecture
from ggufcluster.core.machine import Machine, parse_cpu_features, parse_libc
from ggufcluster.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECTION = "@@ "
_VERSION = re.compile(r"(\d+(?:\.\d+)+)")
_NVCC_VERSION = re.compile(r"release (\d+\.\d+)")
_CUDART = re.compile(r"libcudart\.so\.(\d+)")

# Shells without login read no profile, so the usual places of nvcc and of `pip install --user`
# are searched after PATH; $1 is one more folder, or empty.
_PRELUDE = """
PATH="$PATH${1:+:$1}:$HOME/.local/bin:/usr/local/cuda/bin"
section() { printf '@@ %s\\n' "$1"; }
tool() { section "$1"; command -v "$2" && "$2" --version 2>/dev/null; }
"""

_HOST_PROBE = """
section machine; uname -m
section libc; getconf GNU_LIBC_VERSION 2>/dev/null
section cpu; grep -E '^(flags|Features)' /proc/cpuinfo | sort -u
tool nvcc nvcc
section nvcc-list; command -v nvcc >/dev/null && nvcc --list-gpu-arch 2>/dev/null
section cudart; ldconfig -p 2>/dev/null | grep -o 'libcudart[.]so[.][0-9][0-9]*'
section ibverbs
for folder in /usr/include /usr/local/include; do ls "$folder/infiniband/verbs.h" 2>/dev/null; done
section gpus
nvidia-smi --query-gpu=driver_version,compute_cap --format=csv,noheader 2>/dev/null
section end
"""

_TOOLS_PROBE = """
tool cxx "${CXX:-c++}"
tool cmake cmake
tool ninja ninja
tool make make
tool ccache ccache
section cores; nproc 2>/dev/null || getconf _NPROCESSORS_ONLN
section memory; grep MemAvailable /proc/meminfo
section end
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """An installed program: absolute path and version such as ``13.0``."""

    path: str
    version: str


@dataclass(frozen=True, slots=True)
class BuildHost:
    """What decides which engine a host needs.

    Attributes:
        name: For messages.
        machine: What its binaries depend on.
        nvcc: The CUDA compiler.
        nvcc_architectures: What nvcc says it compiles for; empty if it cannot say.
        ibverbs: The RDMA header is installed.
        driver: Version of the NVIDIA driver that answered; None without.
        gpu_architectures: Architectures of the GPUs found, such as ``121``.
    """

    name: str
    machine: Machine
    nvcc: Tool | None = None
    nvcc_architectures: tuple[str, ...] = ()
    ibverbs: bool = False
    driver: str | None = None
    gpu_architectures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What one host builds with.

    Attributes:
        host: The host itself.
        cores: CPUs that may be used.
        memory: Available bytes.
    """

    host: BuildHost
    cxx: Tool | None
    cmake: Tool | None
    ninja: Tool | None
    make: Tool | None
    ccache: Tool | None
    cores: int
    memory: int

    @property
    def builder(self) -> Tool | None:
        """The program that runs the compilers: ninja, else make."""
        return self.ninja or self.make

    def versions(self) -> dict[str, str]:
        """Return the versions of the tools that shape the binaries."""
        tools = {"c++": self.cxx, "cmake": self.cmake, "nvcc": self.host.nvcc}
        return {name: tool.version for name, tool in tools.items() if tool}


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The backend to build, for which GPUs, and what the user should know about the choice."""

    backend: Backend
    architectures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def host_probe(folder: str = "") -> Command:
    """Build the quick probe that `parse_host` reads; `folder` is searched after PATH."""
    return script(_PRELUDE + _HOST_PROBE, folder)


def tools_probe(folder: str = "") -> Command:
    """Build the probe that `parse_tools` reads; `folder` is searched after PATH."""
    return script(_PRELUDE + _TOOLS_PROBE, folder)


def parse_host(output: str, *, name: str) -> BuildHost:
    """Read what `host_probe` printed."""
    found = _sections(output)
    driver, gpus = parse_gpus(found["gpus"])
    return BuildHost(
        name=name,
        machine=_machine(found),
        nvcc=parse_tool(found["nvcc"], _NVCC_VERSION),
        nvcc_architectures=tuple(re.findall(r"compute_(\w+)", found["nvcc-list"])),
        ibverbs=bool(found["ibverbs"].strip()),
        driver=driver,
        gpu_architectures=gpus,
    )


def parse_tools(output: str, *, host: BuildHost) -> Toolchain:
    """Read what `tools_probe` printed."""
    found = _sections(output)
    return Toolchain(
        host=host,
        **{name: parse_tool(found[name]) for name in ("cxx", "cmake", "ninja", "make", "ccache")},
        cores=int(found["cores"].strip() or 1),
        memory=_kibibytes(found["memory"]),
    )


def parse_tool(text: str, version: re.Pattern[str] = _VERSION) -> Tool | None:
    """Read a path followed by what ``--version`` printed; None if the tool was not found."""
    path, _, answer = text.partition("\n")
    if not path.startswith("/"):
        return None
    number = version.search(answer)
    return Tool(path, number[1] if number else "unknown")


def parse_gpus(text: str) -> tuple[str | None, tuple[str, ...]]:
    """Read driver version and architectures from nvidia-smi's CSV; other output means no GPU."""
    rows = [line.split(",") for line in text.splitlines()]
    good = [(row[0].strip(), row[1].strip()) for row in rows if len(row) == 2]
    capabilities = {cap for _, cap in good if re.fullmatch(r"\d+\.\d", cap)}
    if not capabilities:
        return None, ()
    return good[0][0], tuple(sorted((cap.replace(".", "") for cap in capabilities), key=int))


def choose_backend(
    host: BuildHost, wanted: Backend | None, architectures: Sequence[str] = ()
) -> BackendChoice:
    """Decide what to build for.

    Args:
        host: Where the engine will be built.
        wanted: The user's choice; None means CUDA if a GPU is here and nvcc compiles for it, or if
            architectures are given, and else the CPU.
        architectures: The user's choice; empty means those of the GPUs found.

    Raises:
        ToolchainError: CUDA was asked for, but nvcc is missing or too old, or no architecture is
            known.
    """
    asked = tuple(parse_architecture(text, host=host.name) for text in architectures)
    if wanted is Backend.CPU:
        return BackendChoice(Backend.CPU)
    if wanted is Backend.CUDA or asked:
        return _cuda_choice(host, asked or host.gpu_architectures)
    if not host.gpu_architectures:
        return BackendChoice(Backend.CPU, warnings=_unused_nvcc(host))
    try:
        return _cuda_choice(host, host.gpu_architectures)
    except ToolchainError as error:
        return BackendChoice(Backend.CPU, warnings=(f"building for the CPU only: {error}",))


def require_build_tools(facts: Toolchain) -> tuple[Tool, Tool]:
    """Return cmake and ninja or make.

    Raises:
        ToolchainError: One of them or the C++ compiler is missing, or cmake is too old.
    """
    advice = {
        "c++": "not found: install a C++17 compiler (Debian, Ubuntu: apt install g++)",
        "cmake": "not found: install it (apt install cmake, or pip install cmake)",
        "ninja": "neither ninja nor make found (apt install ninja-build, or pip install ninja)",
    }
    tools = {"c++": facts.cxx, "cmake": facts.cmake, "ninja": facts.builder}
    for name, tool in tools.items():
        if tool is None:
            raise ToolchainError(name, host=facts.host.name, reason=advice[name])
    assert facts.cmake is not None
    assert facts.builder is not None
    # The overlay defers calls in its CMake code, which 3.19 brought.
    if version_key(facts.cmake.version) < (3, 19):
        reason = f"{facts.cmake.version} at {facts.cmake.path} is too old (needs 3.19 or newer)"
        raise ToolchainError("cmake", host=facts.host.name, reason=reason)
    return facts.cmake, facts.builder


def version_key(version: str) -> tuple[int, ...]:
    """Return a version's numbers for comparison; no numbers compare as the newest."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version))
    return numbers or (999,)


def default_jobs(facts: Toolchain, *, cuda: bool) -> int:
    """Return how many compilers to run: one a core, as far as memory allows.

    A process compiling CUDA templates is given 2 GiB, one compiling C++ 1 GiB.
    """
    return max(1, min(facts.cores, facts.memory // ((2 if cuda else 1) << 30)))


def _machine(found: Mapping[str, str]) -> Machine:
    return Machine(
        architecture=found["machine"].strip(),
        libc=parse_libc(found["libc"]),
        cpu_features=parse_cpu_features(found["cpu"]),
        cuda_major=_cuda_major(found["nvcc"], found["cudart"]),
    )


def _cuda_major(nvcc: str, cudart: str) -> int | None:
    tool = parse_tool(nvcc, _NVCC_VERSION)
    if tool and tool.version != "unknown":
        return version_key(tool.version)[0]
    return max(map(int, _CUDART.findall(cudart)), default=None)


def _sections(output: str) -> dict[str, str]:
    sections: dict[str, str] = {}
    for part in ("\n" + output).split("\n" + _SECTION)[1:]:
        name, _, body = part.partition("\n")
        sections[name] = body
    return sections


def _kibibytes(line: str) -> int:
    number = re.search(r"\d+", line)
    return int(number[0]) * 1024 if number else 1 << 30


def _cuda_choice(host: BuildHost, bases: Sequence[str]) -> BackendChoice:
    if host.nvcc is None:
        reason = "neither on PATH nor in /usr/local/cuda/bin: install the CUDA toolkit"
        raise ToolchainError("nvcc", host=host.name, reason=reason)
    if not bases:
        reason = "no GPU here names its architecture: give --arch"
        raise ToolchainError("nvcc", host=host.name, reason=reason)
    for base in bases:
        check_nvcc(
            base,
            host.nvcc.version,
            path=host.nvcc.path,
            host=host.name,
            listed=host.nvcc_architectures,
        )
    return BackendChoice(Backend.CUDA, architectures_for(bases), _missing_driver(host))


def _unused_nvcc(host: BuildHost) -> tuple[str, ...]:
    if host.nvcc is None:
        return ()
    what = f"nvcc {host.nvcc.version} is on {host.name} but no NVIDIA driver answers"
    return (f"{what}: building for the CPU (--arch builds for CUDA all the same)",)


def _missing_driver(host: BuildHost) -> tuple[str, ...]:
    if host.driver:
        return ()
    return (f"no NVIDIA driver answers on {host.name}: this engine will not run there",)
