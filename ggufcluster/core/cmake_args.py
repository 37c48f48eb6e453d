"""How build options become a call of CMake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.core.build_id import Backend
from ggufcluster.core.cuda import cmake_architectures
from ggufcluster.core.recipe import SETTINGS
from ggufcluster.core.toolchain import require_build_tools

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggufcluster.core.build_id import BuildOptions
    from ggufcluster.core.toolchain import Toolchain


def cmake_arguments(
    options: BuildOptions, facts: Toolchain, *, fingerprint: str, build_id: str, commit: str
) -> tuple[str, ...]:
    """Return CMake's arguments besides source and build folder.

    Args:
        options: What to build.
        facts: Tools of the host that builds.
        fingerprint: Compiled into the RPC handshake.
        build_id: Compiled into the version output.
        commit: Commit of llama.cpp, for the version output.

    Raises:
        ToolchainError: The host lacks a tool.
    """
    _, builder = require_build_tools(facts)
    variables: dict[str, str] = {
        **SETTINGS,
        # It may lie where CMake does not look, such as beside our interpreter.
        "CMAKE_MAKE_PROGRAM": builder.path,
        "CMAKE_INSTALL_RPATH": _search_path(facts, options),
        "GGML_NATIVE": _switch(on=options.native),
        "GGML_RPC_RDMA": _switch(on=options.rdma),
        "GGML_CUDA": _switch(on=options.backend is Backend.CUDA),
        "LLAMA_BUILD_COMMIT": commit,
        "GGUFCLUSTER_FINGERPRINT": fingerprint,
        "GGUFCLUSTER_BUILD_ID": build_id,
        **_launchers(facts, options),
        **_cuda(facts, options),
    }
    generator = "Ninja" if facts.ninja else "Unix Makefiles"
    return ("-G", generator, *_definitions(variables))


def _definitions(variables: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"-D{name}={value}" for name, value in variables.items())


def _switch(*, on: bool) -> str:
    return "ON" if on else "OFF"


def _search_path(facts: Toolchain, options: BuildOptions) -> str:
    if options.backend is Backend.CPU or facts.host.nvcc is None:
        return "$ORIGIN"
    # For hosts whose linker cache does not know the toolkit.
    toolkit = facts.host.nvcc.path.removesuffix("/bin/nvcc")
    return f"$ORIGIN;{toolkit}/lib64"


def _launchers(facts: Toolchain, options: BuildOptions) -> dict[str, str]:
    if facts.ccache is None:
        return {}
    languages = ["C", "CXX"] + ["CUDA"] * (options.backend is Backend.CUDA)
    return {f"CMAKE_{name}_COMPILER_LAUNCHER": facts.ccache.path for name in languages}


def _cuda(facts: Toolchain, options: BuildOptions) -> dict[str, str]:
    if options.backend is Backend.CPU or facts.host.nvcc is None:
        return {}
    return {
        "CMAKE_CUDA_COMPILER": facts.host.nvcc.path,
        "CMAKE_CUDA_ARCHITECTURES": cmake_architectures(options.architectures),
        # Without a driver there is no libcuda.so.1 to link programs against, only a stub for the
        # library that calls it.
        "CMAKE_EXE_LINKER_FLAGS": "-Wl,--allow-shlib-undefined",
    }
