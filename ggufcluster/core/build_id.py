"""What an engine is built from, and the two names that follow from it.

The fingerprint names the source: equal on head and worker, compared when they shake hands. The
build id adds how and for what it was built, and names the folder of the finished engine.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ggufcluster.core.recipe import SETTINGS, TARGETS
from ggufcluster.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ggufcluster.core.machine import Machine
    from ggufcluster.core.patches import Patch


class Backend(Enum):
    """What the engine computes on."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Pin:
    """The one upstream version, as written in ``vendor/llama.cpp/UPSTREAM``.

    Attributes:
        llama_cpp_python: Version of the package whose source archive carries llama.cpp.
        sdist_sha256: Hash of that archive, 64 lower-case hex digits.
        commit: Commit of llama.cpp inside it, for people.
        sdist_subdir: Where llama.cpp lies below the archive's single top folder.
    """

    llama_cpp_python: str
    sdist_sha256: str
    commit: str
    sdist_subdir: str

    @property
    def top_folder(self) -> str:
        """Name of the archive's single top folder."""
        return f"llama_cpp_python-{self.llama_cpp_python}"

    @property
    def archive_name(self) -> str:
        """File name of the archive."""
        return f"{self.top_folder}.tar.gz"

    @property
    def origin(self) -> str:
        """Identity of the pinned source as it enters the fingerprint."""
        return f"sdist:{self.sdist_sha256}:{self.sdist_subdir}"


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How to build, with every choice made.

    Attributes:
        backend: What to compute on.
        architectures: CUDA architectures in CMake's spelling without suffix for real or virtual
            code, such as ``121a``; empty for the CPU.
        rdma: Let the RPC transport use RoCE; needs libibverbs.
        native: Use every instruction of the building machine's CPU.
    """

    backend: Backend
    architectures: tuple[str, ...] = ()
    rdma: bool = False
    native: bool = True

    def as_dict(self) -> dict[str, object]:
        """Return the options as JSON-ready values."""
        return {
            "backend": self.backend.value,
            "architectures": list(self.architectures),
            "rdma": self.rdma,
            "native": self.native,
        }


def parse_pin(text: str) -> Pin:
    """Read the text of UPSTREAM.

    Raises:
        SourceError: It is no TOML or lacks a key.
    """
    try:
        values = tomllib.loads(text)
        return Pin(**{name: str(values[name]) for name in Pin.__slots__})
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise SourceError(f"bad pin: {error}", location="UPSTREAM") from error


def fingerprint(origin: str, series: Iterable[Patch], overlay: Mapping[str, bytes]) -> str:
    """Name a source: 16 hex digits over origin, patches in order and overlay files.

    Args:
        origin: `Pin.origin`, or the identity of another tree.
        series: Patches in the order of application. Only their diffs count: a reworded header
            changes no binary.
        overlay: Contents by relative path; their order does not count.
    """
    digest = hashlib.sha256()
    for piece in _pieces(origin, series, overlay):
        # Lengths keep neighbouring pieces apart.
        digest.update(len(piece).to_bytes(8, "big"))
        digest.update(piece)
    return digest.hexdigest()[:16]


def build_id(source: str, options: BuildOptions, machine: Machine) -> str:
    """Name an engine: ``<fingerprint>-<backend>[-<architectures>]-<machine>-<hash>``.

    The closing hash covers the recipe and everything else that decides where the engine runs: libc,
    CUDA major, RDMA and, for a native build, the CPU's instruction sets. Two hosts with the same
    build id may therefore share one build, and no others may.
    """
    words = [source, options.backend.value]
    if options.architectures:
        words.append("+".join(options.architectures))
    words += [machine.architecture, _platform_hash(options, machine)]
    return "-".join(words)


def _platform_hash(options: BuildOptions, machine: Machine) -> str:
    facts = [f"{name}={value}" for name, value in sorted(SETTINGS.items())]
    facts += [*TARGETS, f"libc={machine.libc}", f"rdma={options.rdma}"]
    if options.backend is Backend.CUDA:
        facts.append(f"cuda={machine.cuda_major}")
    if options.native:
        facts.append("cpu=" + ",".join(sorted(machine.cpu_features)))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _pieces(origin: str, series: Iterable[Patch], overlay: Mapping[str, bytes]) -> Iterator[bytes]:
    yield origin.encode()
    for patch in series:
        yield b"patch"
        yield patch.diff.encode()
    for path in sorted(overlay):
        yield path.encode()
        yield overlay[path]
