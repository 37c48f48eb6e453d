"""The native path of sparse attention on the real engine, against the generic one."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pytest

from ggufcluster.core.toy import RANDOM_NAME
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.workflows.toy import write_toys

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine

AGREEMENT_SECONDS = 1200
# The histories have up to 22 blocks. Where the two paths differ by rounding alone they must select
# the same few. Rounding to f16 or 8 bits moves index scores past one another, which is no error, so
# all are selected there.
FEW_BLOCKS, ALL_BLOCKS = 4, 24
# Two heads, so that one is not taken for another. All experts are used: a choice of experts by
# rounding would be another model, and how a CPU rounds is its own.
SMALL = ToyShape(dense_layers=1, key_value_heads=2, queries_per_group=1, experts=4, experts_used=4)
# llama.cpp's attention rounds a cache in f32 to f16 before it uses it, and quantises queries to
# meet a quantised cache. Only the leading dense layers of the generic path run on it, so these are
# left on it in both paths where rounding is all that the limit allows.
LEADING = "GGUFCLUSTER_MSA_LEADING"


class Engine(Protocol):
    """What these tests need of the `engine` fixture."""

    bin: Path


@pytest.mark.parametrize(
    ("cache_type", "limit", "blocks", "layers", "leading"),
    [
        ("f32", "1e-5", FEW_BLOCKS, 3, "generic"),
        ("f32", "1e-3", ALL_BLOCKS, 2, "native"),
        ("q8_0", "1e-3", ALL_BLOCKS, 2, "generic"),
    ],
)
def test_native_and_generic_paths_agree(
    engine: Engine,
    tmp_path: Path,
    cache_type: str,
    limit: str,
    blocks: int,
    layers: int,
    leading: str,
) -> None:
    """Both paths give the same next tokens after removals, holes, shifts, restores and copies."""
    shape = replace(SMALL, layers=layers, selected_blocks=blocks)
    write_toys(tmp_path, template="", shape=shape)
    program = engine.bin / "ggufcluster-msa-agreement"
    model = tmp_path / f"{RANDOM_NAME}.gguf"

    done = subprocess.run(
        [str(program), str(model), cache_type, limit],
        capture_output=True,
        text=True,
        timeout=AGREEMENT_SECONDS,
        check=False,
        env={**os.environ, LEADING: leading},
    )

    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("ok ") >= 4
