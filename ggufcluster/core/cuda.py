"""CUDA architectures: how they are written, and which nvcc compiles for which."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ggufcluster.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPELLING = re.compile(r"^(?:sm_|compute_)?(\d{1,2})\.?(\d)[af]?(?:-real|-virtual)?$")

# First CUDA release that compiles for an architecture, in the variant taken here. 13.0's own list
# (nvcc --list-gpu-arch) was checked; the older entries are from NVIDIA's release notes.
_FIRST = {
    "75": (10, 0), "80": (11, 0), "86": (11, 1), "87": (11, 4), "88": (13, 0), "89": (11, 8),
    "90": (12, 0), "100": (12, 8), "103": (12, 9), "110": (13, 0), "120": (12, 8), "121": (12, 9),
}  # fmt: skip
# CUDA 13.0 compiles for nothing below this.
_OLDEST_FOR_13 = 75


def parse_architecture(text: str, *, host: str = "this machine") -> str:
    """Return an architecture as bare digits: ``121`` for ``12.1``, ``sm_121`` or ``121a-real``.

    Raises:
        ToolchainError: The text names no architecture.
    """
    match = _SPELLING.match(text.strip())
    if match is None:
        reason = f"{text!r} is no CUDA architecture: write it like 121 (GB10), 90 or 89"
        raise ToolchainError("nvcc", host=host, reason=reason)
    return match[1] + match[2]


def architectures_for(bases: Sequence[str]) -> tuple[str, ...]:
    """Return the variants to compile for, sorted: ``121`` becomes ``121a``.

    The FP4 tensor-core instructions of 12.x and the warpgroup ones of 9.0 exist only in the
    architecture-specific variant.
    """
    unique = sorted(set(bases), key=int)
    return tuple(f"{base}a" if base.startswith(("12", "90")) else base for base in unique)


def cmake_architectures(architectures: Sequence[str]) -> str:
    """Return the value of CMAKE_CUDA_ARCHITECTURES: ``121a-real``.

    Real code only: code for other GPUs to compile at start-up would double build time and size.
    """
    return ";".join(f"{name}-real" for name in architectures)


def check_nvcc(
    base: str, nvcc: str, *, path: str, listed: Sequence[str] = (), host: str = "this machine"
) -> None:
    """Make sure that an nvcc compiles for an architecture.

    Args:
        base: Architecture as bare digits.
        nvcc: Version such as ``12.4``.
        path: Where nvcc is, for the message.
        listed: What nvcc itself lists; decides if given.
        host: For the message.

    Raises:
        ToolchainError: It does not; the message names both versions.
    """
    if _supported(base, nvcc, listed):
        return
    reason = f"{nvcc} at {path} cannot compile for sm_{base}{_why(base, nvcc)}"
    raise ToolchainError("nvcc", host=host, reason=reason)


def _supported(base: str, nvcc: str, listed: Sequence[str]) -> bool:
    if listed:
        return base in listed
    version = _numbers(nvcc)
    if version >= (13, 0) and int(base) < _OLDEST_FOR_13:
        return False
    return version >= _FIRST.get(base, (0, 0))


def _why(base: str, nvcc: str) -> str:
    first = _FIRST.get(base)
    if first and _numbers(nvcc) < first:
        return f" (needs {first[0]}.{first[1]} or newer)"
    if int(base) < _OLDEST_FOR_13 and _numbers(nvcc) >= (13, 0):
        return " (CUDA 13.0 dropped it; needs 12.9 or older)"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
