"""A finished engine and the record that lies beside its binaries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ggufcluster.core.build_id import Backend, BuildOptions, Pin
from ggufcluster.core.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePosixPath

    from ggufcluster.core.toolchain import BuildHost

RECORD_NAME = "build.json"
# What every program of an engine gets. Two threads that fail at once, as on a CPU all do, would
# each wait for the end of a backtrace that waits for the other's.
PROGRAM_VARIABLES: Final = MappingProxyType({"GGML_NO_BACKTRACE": "1"})


@dataclass(frozen=True, slots=True)
class Engine:
    """A published engine on one host.

    Attributes:
        folder: Where it lies on that host, absolute; it may be moved as a whole.
        build_id: Name that also covers options and machine.
        fingerprint: Name of the source; equal engines shake hands.
        options: How it was built.
        machine: What it was built for.
        size: Bytes of its files.
    """

    folder: PurePosixPath
    build_id: str
    fingerprint: str
    options: BuildOptions
    machine: Machine
    size: int

    @property
    def bin(self) -> PurePosixPath:
        """Folder with the programs and their libraries."""
        return self.folder / "bin"

    @property
    def backend(self) -> Backend:
        """What it computes on."""
        return self.options.backend

    @property
    def architectures(self) -> tuple[str, ...]:
        """CUDA architectures that it has code for."""
        return self.options.architectures

    @property
    def rdma(self) -> bool:
        """Whether its RPC transport can use RoCE."""
        return self.options.rdma

    def program(self, name: str) -> PurePosixPath:
        """Return the path of a program such as ``llama-server``."""
        return self.bin / name


def copy_obstacles(engine: Engine, host: BuildHost, *, wanted: Backend | None) -> tuple[str, ...]:
    """Say why a host needs a build of its own; empty if a copy of `engine` will do.

    Args:
        engine: The engine of the head.
        host: The worker.
        wanted: The backend that the user asked for, if any.
    """
    cuda = engine.backend is Backend.CUDA
    found = list(engine.machine.differences(host.machine, native=engine.options.native, cuda=cuda))
    if cuda and host.driver is None:
        found.append("no NVIDIA driver answers there")
    covered = {name.rstrip("af") for name in engine.architectures}
    strange = [name for name in host.gpu_architectures if name not in covered]
    # A worker's GPU is not left idle because the head has none.
    if strange and (cuda or (wanted is None and host.nvcc is not None)):
        found.append(f"its GPU is sm_{strange[0]}")
    return tuple(found)


def record_head(
    *,
    build_id: str,
    fingerprint: str,
    pin: Pin,
    origin: str,
    options: BuildOptions,
    machine: Machine,
    tools: Mapping[str, str],
    built: str,
) -> str:
    """Return the record's JSON up to its list of files, which the build script appends.

    Args:
        build_id: Name of the engine.
        fingerprint: Name of the source.
        pin: The pinned upstream version.
        origin: Where the source came from; differs from the pin's for ``--source``.
        options: How it is built.
        machine: What it is built for.
        tools: Versions of compilers by name.
        built: Date and time, ISO 8601 with zone.
    """
    head = {
        "build_id": build_id,
        "fingerprint": fingerprint,
        "pin": {name: getattr(pin, name) for name in type(pin).__slots__},
        "origin": origin,
        "options": options.as_dict(),
        "machine": {
            "architecture": machine.architecture,
            "libc": machine.libc,
            "cpu_features": sorted(machine.cpu_features),
            "cuda_major": machine.cuda_major,
        },
        "tools": dict(tools),
        "built": built,
    }
    return json.dumps(head, indent=1).removesuffix("\n}") + ',\n "files": [\n'


def read_engine(folder: PurePosixPath, record: str, sizes: str) -> Engine | None:
    """Build the `Engine` of a folder, or return None if it is damaged or no engine.

    Args:
        folder: Where it lies.
        record: Text of its build.json.
        sizes: One line for each file in ``bin/``: size in bytes, space, name.
    """
    try:
        values = json.loads(record)
        files = {entry["path"]: entry["size"] for entry in values["files"] if "size" in entry}
        if not files or not files.items() <= _parse_sizes(sizes).items():
            return None
        return _engine(folder, values, size=sum(files.values()))
    except (ValueError, KeyError, TypeError):
        return None


def binding_obstacle(record: str, installed: str) -> str | None:
    """Say why Python bindings cannot run on an engine's libraries; None if they can.

    Structures are laid out as in one commit of llama.cpp: others would read wrong memory.

    Args:
        record: Text of the engine's build.json.
        installed: Version of llama-cpp-python that is installed.
    """
    values = json.loads(record)
    pin = Pin(**values["pin"])
    if values["origin"] != pin.origin:
        return "it was built from another llama.cpp than the pinned one"
    if pin.llama_cpp_python != installed:
        return (
            f"it is llama.cpp {pin.commit} of llama-cpp-python {pin.llama_cpp_python},"
            f" and version {installed} is installed"
        )
    return None


def _engine(folder: PurePosixPath, values: Mapping[str, Any], *, size: int) -> Engine:
    options, machine = values["options"], values["machine"]
    return Engine(
        folder=folder,
        build_id=values["build_id"],
        fingerprint=values["fingerprint"],
        options=BuildOptions(
            backend=Backend(options["backend"]),
            architectures=tuple(options["architectures"]),
            rdma=options["rdma"],
            native=options["native"],
        ),
        machine=Machine(
            architecture=machine["architecture"],
            libc=machine["libc"],
            cpu_features=frozenset(machine["cpu_features"]),
            cuda_major=machine["cuda_major"],
        ),
        size=size,
    )


def _parse_sizes(text: str) -> dict[str, int]:
    pairs = (line.partition(" ") for line in text.splitlines() if line.strip())
    return {name: int(size) for size, _, name in pairs}
