"""Peak figures of GPUs as their makers state them: what no program on them can exceed."""

from __future__ import annotations

from dataclasses import dataclass

_GB = 1e9
_TERA = 1e12


@dataclass(frozen=True, slots=True)
class Chip:
    """Peaks of one GPU.

    Attributes:
        bandwidth: Bytes per second of its memory.
        operations: Multiplications and additions per second on 8-bit numbers, without sparsity;
            quantised matrices are multiplied in that precision.
    """

    bandwidth: float
    operations: float


# Makers' data sheets. GB10: NVIDIA states 1 PFLOP/s in FP4 with sparsity, of which a quarter is
# 8-bit without.
_CHIPS = {
    "GB10": Chip(273 * _GB, 250 * _TERA),
    "H200": Chip(4800 * _GB, 1979 * _TERA),
    "H100 NVL": Chip(3938 * _GB, 1671 * _TERA),
    "H100 PCIe": Chip(2000 * _GB, 1513 * _TERA),
    "H100": Chip(3350 * _GB, 1979 * _TERA),
    "A100": Chip(2039 * _GB, 624 * _TERA),
    "L40S": Chip(864 * _GB, 733 * _TERA),
    "RTX 5090": Chip(1792 * _GB, 838 * _TERA),
    "RTX 4090": Chip(1008 * _GB, 660.6 * _TERA),
    "RTX 3090": Chip(936 * _GB, 284 * _TERA),
}


def chip_of(name: str) -> Chip | None:
    """Return the peaks of a GPU by the name that its driver shows, None if it is not known."""
    return next((chip for key, chip in _CHIPS.items() if key in name), None)
