"""What decides whether a binary built on one machine runs on another."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Kernel flags also tell of microcode fixes and virtualisation and change with a kernel update; a
# compiler only makes use of instruction sets. Names as in Linux's /proc/cpuinfo, x86 and Arm.
_INSTRUCTION_SETS = re.compile(
    r"^(s?sse\d?|ssse3|sse4_[12]|sse4a|avx.*|amx.*|f16c|fma|bmi[12]|abm|adx|movbe|popcnt|v?aes|"
    r"v?pclmulqdq|gfni|sha_ni|"
    r"fp|fphp|asimd.*|sve.*|sme\d*|sme[ibf].*|i8mm|bf16|atomics|crc32|sha[0-9]+|sm[34]|pmull|lrcpc|dcpop|"
    r"jscvt|fcma|flagm2?|frint|dotprod|paca|pacg|sb|bti|mte)$"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts that two machines must share to share a binary.

    Attributes:
        architecture: As ``uname -m`` says, such as ``aarch64``.
        libc: Name and version, such as ``glibc 2.39``.
        cpu_features: Instruction sets that every core has.
        cuda_major: Major version of the CUDA toolkit or run-time libraries; None without.
    """

    architecture: str
    libc: str
    cpu_features: frozenset[str] = frozenset()
    cuda_major: int | None = None

    def differences(self, other: Machine, *, native: bool, cuda: bool) -> tuple[str, ...]:
        """Say in what `other` differs so that it needs its own build; empty if in nothing."""
        found = []
        if self.architecture != other.architecture:
            found.append(f"machine {other.architecture} instead of {self.architecture}")
        if self.libc != other.libc:
            found.append(f"{other.libc} instead of {self.libc}")
        if cuda and self.cuda_major != other.cuda_major:
            found.append(f"CUDA {other.cuda_major} instead of {self.cuda_major}")
        if native and self.cpu_features != other.cpu_features:
            odd = ", ".join(sorted(self.cpu_features ^ other.cpu_features)[:6])
            found.append(f"another CPU ({odd})")
        return tuple(found)


def parse_cpu_features(text: str) -> frozenset[str]:
    """Read the instruction sets that all cores share from the flag lines of /proc/cpuinfo."""
    cores = [line.partition(":")[2].split() for line in text.splitlines() if ":" in line]
    if not cores:
        return frozenset()
    shared = frozenset.intersection(*map(frozenset, cores))
    return frozenset(name for name in shared if _INSTRUCTION_SETS.match(name))


def parse_libc(text: str) -> str:
    """Read ``getconf GNU_LIBC_VERSION``; a host without glibc is named as such."""
    return text.strip() or "no glibc"
