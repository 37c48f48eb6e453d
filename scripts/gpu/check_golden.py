"""Ask the CUDA kernels of sparse attention for the golden vectors of transformers.

Run from the root of the checkout, where numpy, nvcc and a GPU are:

    python3 -m scripts.gpu.check_golden [ARCH] > golden.jsonl

ARCH is the GPU's architecture, 90a if left out. Every case is asked in 16 bits of both kinds, with
positions in step with their cells and scattered over them, and once more as the end of a longer
prefill, which other kernels compute. The numbers are exact in 16 bits and scores exact in f32, so
selections must be equal to the last block; outputs may differ by what rounding probabilities to
f16 costs. One JSON object a case; exit code 1 if one is wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.vendor.msa_golden import CASES, golden_ids, golden_outputs, sequence, spread
from tests.vendor.msa_numbers import sample
from tests.vendor.msa_reference import OVERLAY, ROOT, Reference, Reply, Request

LONG_TOKENS = 513
# Outputs reach 2; the golden ones differ by up to 0.24 between sparse and dense.
TOLERANCE = 4e-3
KINDS = ("f16", "bf16")


@dataclass(frozen=True, slots=True)
class Kernels(Reference):
    """The compiled kernels, asked as the reference is."""

    kind: str = "f16"

    def command(self, asked: Path, answered: Path) -> list[Path | str]:
        """Give the words that run one request."""
        return [self.program, asked, answered, self.kind]


def compile_kernels(folder: Path, arch: str) -> Kernels:
    """Compile the driver and the kernels for one architecture."""
    program, include = folder / "msa_kernel_driver", OVERLAY / "ggml" / "src"
    sources = [
        Path(__file__).with_name("msa_kernel_driver.cu"),
        *sorted((include / "ggml-cuda").glob("msa-*.cu")),
    ]
    flags = ["-std=c++17", "-O3", f"-gencode=arch=compute_{arch},code=sm_{arch}"]
    folders = [f"-I{include}", f"-I{ROOT / 'tests' / 'vendor'}"]
    subprocess.run(["nvcc", *flags, *folders, "-o", program, *sources], check=True)
    return Kernels(program, folder)


def last_of(reply: Reply, tokens: int) -> Reply:
    """Keep the last tokens of an answer."""
    return Reply(reply.ids[:, -tokens:], reply.outputs[:, -tokens:])


def compared(number: int, kernels: Kernels, request: Request, shape: str) -> dict[str, Any]:
    """Ask one request and compare the end of the answer with a case."""
    case = CASES[number]
    reply = last_of(kernels.ask(request), case["tokens"])
    error = float(np.abs(sample(reply.outputs[0]) - golden_outputs(number)).max())
    same = bool(np.array_equal(reply.ids[0], golden_ids(case)))
    return {
        "keys": case["keys"],
        "tokens": request.position.shape[1],
        "cells": shape,
        "kv": kernels.kind,
        "same_blocks": same,
        "largest_error": round(error, 7),
        "right": same and error < TOLERANCE,
    }


def main() -> None:
    """Compare every case; the exit code tells."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_kernels(Path(folder), sys.argv[1] if len(sys.argv) > 1 else "90a")
        for kind in KINDS:
            kernels = replace(compiled, kind=kind)
            for number, case in enumerate(CASES):
                for tokens in sorted({case["tokens"], min(LONG_TOKENS, case["keys"])}):
                    asked = sequence(case["keys"], tokens)
                    for shape, request in (("in order", asked), ("spread", spread(asked))):
                        result = compared(number, kernels, request, shape)
                        wrong += not result["right"]
                        print(json.dumps(result), flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
