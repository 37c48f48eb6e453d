"""The native path of sparse attention on the real engine, against the generic one."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.toy import RANDOM_NAME, random_model
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.workflows.toy import publish_model, write_toys
from tests.engine.rpc_workers import rpc_worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.engine.rpc_workers import Engine

pytestmark = pytest.mark.engine

AGREEMENT_SECONDS = 1200
# The histories have up to 22 blocks. Where the two paths differ by rounding alone they must select
# the same few. Rounding to f16 or 8 bits moves index scores past one another, which is no error, so
# all are selected there.
FEW_BLOCKS, ALL_BLOCKS = 4, 24
# At depths up to 8,192 M3's own number is selected, of up to 64.
REAL_BLOCKS = 16
# From how many tokens llama.cpp's attention works in f32 on a CPU, and how many such `--deep` has.
F32_SUMS, LARGE_BATCHES = 64, 9
# Two heads, so that one is not taken for another. All experts are used: a choice of experts by
# rounding would be another model, and how a CPU rounds is its own.
SMALL = ToyShape(dense_layers=1, key_value_heads=2, queries_per_group=1, experts=4, experts_used=4)
ALL_LAYERS = "99"
# llama.cpp's attention rounds a cache in f32 to f16 before it uses it, and quantises queries to
# meet a quantised cache. Only the leading dense layers of the generic path run on it, so these are
# left on it in both paths where rounding is all that the limit allows.
LEADING = "GGUFCLUSTER_MSA_LEADING"
# Blocks are only chosen where there are more than a token may have; this one makes it always so.
SELECT = "GGUFCLUSTER_MSA_SELECT"


def assert_agrees(
    engine: Engine, arguments: Sequence[str], *, stories: int, **variables: str
) -> str:
    """Run the program that tells both paths the same stories and compares what they answer.

    Returns what it prints.
    """
    done = subprocess.run(
        [str(engine.bin / "ggufcluster-msa-agreement"), *arguments],
        capture_output=True,
        text=True,
        timeout=AGREEMENT_SECONDS,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.count("ok ") == stories
    return done.stdout


def toy(folder: Path, blocks: int, *, layers: int) -> str:
    """Write a toy whose tokens select that many blocks."""
    shape = replace(SMALL, layers=layers, selected_blocks=blocks)
    write_toys(folder, template="", shape=shape)
    return str(folder / f"{RANDOM_NAME}.gguf")


def precise_toy(folder: Path, *, layers: int, heads: int) -> str:
    """Write a toy with weights in F32: other types round activations, which hides differences.

    Its first sparse layer reads the same numbers on both paths, whatever the cache rounds, so it
    selects the same blocks.
    """
    shape = replace(SMALL, layers=layers, key_value_heads=heads, selected_blocks=REAL_BLOCKS)
    path = folder / "precise.gguf"
    publish_model(random_model("", shape, matrices=TensorType.F32), path)
    return str(path)


@pytest.mark.parametrize(
    ("cache_type", "stories", "blocks", "leading", "select"),
    [
        ("f32", 5, ALL_BLOCKS, "native", "needed"),
        ("q8_0", 4, ALL_BLOCKS, "generic", "always"),
    ],
)
def test_native_and_generic_paths_agree(
    engine: Engine,
    tmp_path: Path,
    cache_type: str,
    stories: int,
    blocks: int,
    leading: str,
    select: str,
) -> None:
    """Both paths give the same next tokens after removals, holes, shifts, restores and copies."""
    arguments = (toy(tmp_path, blocks, layers=2), cache_type, "1e-3")

    assert_agrees(engine, arguments, stories=stories, **{LEADING: leading, SELECT: select})


def test_both_paths_can_be_held_against_the_reference(engine: Engine, tmp_path: Path) -> None:
    """On a CPU the native path is the reference, so what it is off by is what threads round."""
    arguments = ("--reference", toy(tmp_path, ALL_BLOCKS, layers=2), "f32", "1e-9")

    said = assert_agrees(engine, arguments, stories=5)

    off = re.findall(r"native (\S+) (\S+), generic (\S+) (\S+)", said)
    assert len(off) == 5
    assert all(float(native) < float(generic) for native, _, generic, _ in off)


def test_unknown_option_of_the_comparison_is_named(engine: Engine) -> None:
    """A misspelt option ends the program instead of passing for a file."""
    done = subprocess.run(
        [str(engine.bin / "ggufcluster-msa-agreement"), "--depe", "model", "f32", "1e-3"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr == "what is --depe?\n"


def test_paths_agree_to_the_last_bits_over_two_workers(engine: Engine, tmp_path: Path) -> None:
    """The layers of either path may lie on workers: map and positions reach them as inputs."""
    arguments = (toy(tmp_path, FEW_BLOCKS, layers=3), "f32", "1e-5", ALL_LAYERS)

    with rpc_worker(engine, tmp_path) as first, rpc_worker(engine, tmp_path) as second:
        assert_agrees(engine, (*arguments, first, second), stories=5, **{LEADING: "generic"})


def test_paths_agree_at_depths_to_8192_with_a_quantised_cache(
    engine: Engine, tmp_path: Path
) -> None:
    """Batches of 1 to 513 tokens and of two sequences give the same next tokens at every depth."""
    arguments = ("--deep", precise_toy(tmp_path, layers=2, heads=2), "q8_0", "1e-3")

    assert_agrees(engine, arguments, stories=1, **{LEADING: "generic"})


def test_paths_agree_at_depths_to_8192_with_a_cache_in_f16(engine: Engine, tmp_path: Path) -> None:
    """Batches of 64 and more agree to 1e-5; below that llama.cpp adds f16 up in f16 on a CPU."""
    arguments = ("--deep", precise_toy(tmp_path, layers=2, heads=2), "f16", "1e-3")

    said = assert_agrees(engine, arguments, stories=1, **{LEADING: "generic"})

    large = [
        float(divergence)
        for tokens, divergence in re.findall(r"batch of \d x +(\d+): (\S+)", said)
        if int(tokens) >= F32_SUMS
    ]
    assert len(large) == LARGE_BATCHES
    assert max(large) < 1e-5


def test_paths_agree_at_depths_to_8192_over_two_workers(engine: Engine, tmp_path: Path) -> None:
    """The same depths and batches agree to the last bits with a sparse layer on either worker."""
    model = precise_toy(tmp_path, layers=3, heads=1)

    with rpc_worker(engine, tmp_path) as first, rpc_worker(engine, tmp_path) as second:
        arguments = ("--deep", model, "f32", "1e-5", ALL_LAYERS, first, second)
        assert_agrees(engine, arguments, stories=1, **{LEADING: "generic"})
