"""The native path of sparse attention on the real engine, against the generic one."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.toy import RANDOM_NAME
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.workflows.toy import write_toys
from tests.engine.rpc_workers import rpc_worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.engine.rpc_workers import Engine

pytestmark = pytest.mark.engine

AGREEMENT_SECONDS = 1200
# The histories have up to 22 blocks. In f32 the two paths must select the same few; rounding of
# a quantised cache moves index scores past one another, which is no error, so all are selected.
FEW_BLOCKS, ALL_BLOCKS = 4, 24
ALL_LAYERS = "99"
# llama.cpp's attention rounds a cache in f32 to f16 before it uses it, and quantises queries to
# meet a quantised cache. Only the leading dense layers of the generic path run on it, so these are
# left on it in both paths where rounding is all that the limit allows.
LEADING = "GGUFCLUSTER_MSA_LEADING"
# Blocks are only chosen where there are more than a token may have; this one makes it always so.
SELECT = "GGUFCLUSTER_MSA_SELECT"


def assert_agrees(engine: Engine, arguments: Sequence[str], **variables: str) -> None:
    """Run the program that tells the same stories to both paths and compares what they answer."""
    done = subprocess.run(
        [str(engine.bin / "ggufcluster-msa-agreement"), *arguments],
        capture_output=True,
        text=True,
        timeout=AGREEMENT_SECONDS,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("ok ") >= 4


def toy(folder: Path, blocks: int) -> str:
    """Write a toy whose tokens select that many blocks."""
    shape = ToyShape(layers=3, dense_layers=1, queries_per_group=1, selected_blocks=blocks)
    write_toys(folder, template="", shape=shape)
    return str(folder / f"{RANDOM_NAME}.gguf")


@pytest.mark.parametrize(
    ("cache_type", "limit", "blocks", "leading", "select"),
    [
        ("f32", "1e-3", FEW_BLOCKS, "native", "needed"),
        ("q8_0", "1e-3", ALL_BLOCKS, "generic", "always"),
    ],
)
def test_native_and_generic_paths_agree(
    engine: Engine,
    tmp_path: Path,
    cache_type: str,
    limit: str,
    blocks: int,
    leading: str,
    select: str,
) -> None:
    """Both paths give the same next tokens after removals, holes, shifts, restores and copies."""
    arguments = (toy(tmp_path, blocks), cache_type, limit)

    assert_agrees(engine, arguments, **{LEADING: leading, SELECT: select})


def test_paths_agree_to_the_last_bits_over_two_workers(engine: Engine, tmp_path: Path) -> None:
    """The layers of either path may lie on workers: map and positions reach them as inputs."""
    arguments = (toy(tmp_path, FEW_BLOCKS), "f32", "1e-5", ALL_LAYERS)

    with rpc_worker(engine, tmp_path) as first, rpc_worker(engine, tmp_path) as second:
        assert_agrees(engine, (*arguments, first, second), **{LEADING: "generic"})
