"""Sizes and times, formatted only at the edge."""

from __future__ import annotations

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def size_text(size: float) -> str:
    """Format a number of bytes with three digits and a binary unit: ``194 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return _three_digits(size, unit)
        size /= 1024
    return _three_digits(size, "TiB")


def seconds_text(seconds: float) -> str:
    """Format a duration for people: ``0.4 s``, ``12 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _three_digits(value: float, unit: str) -> str:
    if unit == "B" or value >= 100:
        return f"{value:.0f} {unit}"
    return f"{value:.1f} {unit}" if value >= 10 else f"{value:.2f} {unit}"
