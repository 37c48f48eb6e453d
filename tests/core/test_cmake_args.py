"""Build options as arguments of CMake."""

from __future__ import annotations

from dataclasses import replace

from ggufcluster.core.build_id import Backend, BuildOptions
from ggufcluster.core.cmake_args import cmake_arguments
from ggufcluster.core.machine import Machine
from ggufcluster.core.recipe import TARGETS
from ggufcluster.core.toolchain import BuildHost, Tool, Toolchain

HOST = BuildHost("w", Machine("aarch64", "glibc 2.39"), nvcc=Tool("/opt/cuda/bin/nvcc", "13.0"))
TOOLS = Toolchain(
    HOST,
    cxx=Tool("/usr/bin/c++", "13.3"),
    cmake=Tool("/usr/bin/cmake", "3.28"),
    ninja=Tool("/usr/bin/ninja", "1.11"),
    make=Tool("/usr/bin/make", "4.3"),
    ccache=None,
    cores=20,
    memory=100 << 30,
)


def arguments(options: BuildOptions, tools: Toolchain = TOOLS) -> tuple[str, ...]:
    """Return the arguments for some options."""
    return cmake_arguments(
        options, tools, fingerprint="f" * 16, build_id="f-cpu-x", commit="0c1e57098"
    )


def test_cuda_build_names_compiler_and_architecture() -> None:
    """The compiler is given by path, the architecture as real code of the `a` variant."""
    made = arguments(BuildOptions(Backend.CUDA, ("121a",), rdma=True))

    assert "-DGGML_CUDA=ON" in made
    assert "-DCMAKE_CUDA_COMPILER=/opt/cuda/bin/nvcc" in made
    assert "-DCMAKE_CUDA_ARCHITECTURES=121a-real" in made
    assert "-DCMAKE_INSTALL_RPATH=$ORIGIN;/opt/cuda/lib64" in made
    assert "-DGGML_RPC_RDMA=ON" in made


def test_cpu_build_mentions_no_cuda() -> None:
    """A CPU build leaves nvcc alone, and its libraries are found beside the program."""
    made = arguments(BuildOptions(Backend.CPU))

    assert "-DGGML_CUDA=OFF" in made
    assert "-DCMAKE_INSTALL_RPATH=$ORIGIN" in made
    assert "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON" in made
    assert not [word for word in made if "CMAKE_CUDA" in word]


def test_every_build_is_a_named_release_with_rpc_and_without_downloads() -> None:
    """Both names go into the binaries, and nothing reaches for the network."""
    made = arguments(BuildOptions(Backend.CPU))

    assert {
        "-DCMAKE_BUILD_TYPE=Release",
        "-DGGML_RPC=ON",
        "-DGGML_RPC_RDMA=OFF",
        "-DGGML_NATIVE=ON",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
        "-DLLAMA_OPENSSL=OFF",
        f"-DGGUFCLUSTER_FINGERPRINT={'f' * 16}",
        "-DGGUFCLUSTER_BUILD_ID=f-cpu-x",
        "-DLLAMA_BUILD_COMMIT=0c1e57098",
    } <= set(made)


def test_portable_build_is_not_native() -> None:
    """A build for several machines does not use this one's instructions."""
    assert "-DGGML_NATIVE=OFF" in arguments(BuildOptions(Backend.CPU, native=False))


def test_generator_follows_what_is_installed() -> None:
    """Ninja is preferred, make is taken without it."""
    assert arguments(BuildOptions(Backend.CPU))[:2] == ("-G", "Ninja")
    made = arguments(BuildOptions(Backend.CPU), replace(TOOLS, ninja=None))

    assert made[:2] == ("-G", "Unix Makefiles")
    assert "-DCMAKE_MAKE_PROGRAM=/usr/bin/make" in made


def test_ccache_is_used_for_every_language_of_the_build() -> None:
    """With ccache installed each compiler is started through it."""
    tools = replace(TOOLS, ccache=Tool("/usr/bin/ccache", "4.7"))
    launchers = [
        word
        for word in arguments(BuildOptions(Backend.CUDA, ("90",)), tools)
        if word.endswith("_COMPILER_LAUNCHER=/usr/bin/ccache")
    ]

    assert len(launchers) == 3


def test_targets_hold_both_server_programs() -> None:
    """What head and worker run is built."""
    assert {"llama-server", "ggml-rpc-server"} <= set(TARGETS)
