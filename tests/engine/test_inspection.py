"""What `inspect` lets through runs on the real engine, and what it refuses does not."""

from __future__ import annotations

import io
import os
import subprocess
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Protocol

import pytest

from ggufcluster import resources
from ggufcluster.core.engine import PROGRAM_VARIABLES
from ggufcluster.core.ggml_types import MATRIX_TYPES, TensorType, tensor_bytes
from ggufcluster.core.gguf import read_header
from ggufcluster.core.gguf_write import GgufModel, Tensor
from ggufcluster.core.inspection import inspect_model
from ggufcluster.core.shards import Shard
from ggufcluster.core.toy import random_model
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.errors import ModelFileError, UnsupportedTensorError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.engine

# Rows of 256 fill the blocks of every type.
SECONDS = 300
SHAPE = ToyShape(layers=3, dense_layers=1, width=256, expert_width=256, dense_width=256)


class Engine(Protocol):
    """What these tests need of the `engine` fixture."""

    def program(self, name: str) -> Path:
        """Return one of its programs."""


@pytest.fixture(scope="module")
def model() -> GgufModel:
    """A toy whose matrices may be stored in any type."""
    template = (resources.templates() / "toy" / "minimax-m3-toy.jinja").read_text(encoding="utf-8")
    return random_model(template, SHAPE)


def stored_as(tensor: Tensor, kind: TensorType) -> Tensor:
    """Give a tensor another type, all zeros."""
    return replace(tensor, type=kind, data=bytes(tensor_bytes(tensor.shape, kind)))


def changed(model: GgufModel, change: Callable[[Tensor], Tensor]) -> GgufModel:
    """Change each tensor of a model."""
    return GgufModel(model.metadata, [change(tensor) for tensor in model.tensors])


def judge(model: GgufModel) -> None:
    """Judge a model as `inspect` and `up` do."""
    data = model.to_bytes()
    inspect_model([Shard("m.gguf", len(data), read_header(io.BytesIO(data)))])


def runs(engine: Engine, model: GgufModel, folder: Path) -> bool:
    """Tell whether the engine computes a few tokens with it."""
    path = folder / "m.gguf"
    path.write_bytes(model.to_bytes())
    words = [str(engine.program("llama-bench")), "-m", str(path), "-p", "8", "-n", "1"]
    words += ["-r", "1", "-t", "2", "--no-warmup"]
    quiet = {**os.environ, **PROGRAM_VARIABLES}
    done = subprocess.run(words, capture_output=True, check=False, env=quiet, timeout=SECONDS)
    return done.returncode == 0


def test_all_types_that_pass_run(engine: Engine, model: GgufModel, tmp_path: Path) -> None:
    """A model whose matrices take turns through all types that are let through is computed."""
    kinds = cycle(sorted(MATRIX_TYPES))
    mixed = changed(
        model,
        lambda tensor: (
            stored_as(tensor, next(kinds))
            if tensor.shape[0] == SHAPE.width and len(tensor.shape) > 1
            else tensor
        ),
    )
    assert {tensor.type for tensor in mixed.tensors} == MATRIX_TYPES
    judge(mixed)
    assert runs(engine, mixed, tmp_path)


@pytest.mark.parametrize("kind", sorted(set(TensorType) - MATRIX_TYPES))
def test_types_that_are_refused_do_not_run(
    engine: Engine, model: GgufModel, tmp_path: Path, kind: TensorType
) -> None:
    """Such a matrix ends the engine, so that nothing usable is refused."""
    odd = changed(model, lambda t: stored_as(t, kind) if t.name == "blk.0.ffn_up.weight" else t)
    with pytest.raises(UnsupportedTensorError):
        judge(odd)
    assert not runs(engine, odd, tmp_path)


@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "blk.1.indexer.q_norm.weight"])
def test_norms_of_another_type_do_not_run(
    engine: Engine, model: GgufModel, tmp_path: Path, name: str
) -> None:
    """A norm in F16 ends the engine."""
    odd = changed(model, lambda t: stored_as(t, TensorType.F16) if t.name == name else t)
    with pytest.raises(UnsupportedTensorError):
        judge(odd)
    assert not runs(engine, odd, tmp_path)


@pytest.mark.parametrize(
    "name", ["blk.2.indexer.k_proj.weight", "blk.2.exp_probs_b.bias", "blk.0.ffn_norm.weight"]
)
def test_models_with_holes_do_not_run(
    engine: Engine, model: GgufModel, tmp_path: Path, name: str
) -> None:
    """A tensor that is missed by `inspect` is missed by the loader."""
    holed = GgufModel(model.metadata, [t for t in model.tensors if t.name != name])
    with pytest.raises(ModelFileError):
        judge(holed)
    assert not runs(engine, holed, tmp_path)
