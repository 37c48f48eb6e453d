"""A grafted toy on the real engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster import resources
from ggufcluster.core.toy import random_model
from ggufcluster.core.toy_original import original_files, without_indexer
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.graft import graft_indexer
from ggufcluster.workflows.originals import LocalOriginals
from tests.core.test_shards import split
from tests.engine.test_toy_models import SPARSE, serving

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engine.rpc_workers import Engine

pytestmark = pytest.mark.engine

# Longer than the blocks that are selected, so that the indexer decides what is seen.
PROMPT = [number % 400 + 100 for number in range(2200)]
TOKENS = 24


def answer(engine: Engine, model: Path) -> dict[str, Any]:
    """Complete the prompt greedily."""
    with serving(engine, model, *SPARSE) as server:
        assert "dense attention" not in server.log.read_text(errors="replace")
        return server.complete(PROMPT, TOKENS)


def test_the_grafted_toy_equals_the_whole_one(engine: Engine, tmp_path: Path) -> None:
    """Token for token and with the same probabilities: the engine sees the same model."""
    template = (resources.templates() / "toy" / "minimax-m3-toy.jinja").read_text(encoding="utf-8")
    model = random_model(template)
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(model.to_bytes())
    dense = [tmp_path / f"dense-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
    for path, part in zip(dense, split(without_indexer(model)), strict=True):
        path.write_bytes(part.to_bytes())
    for name, data in original_files(model).items():
        (tmp_path / name).write_bytes(data)

    grafted = drain(graft_indexer(dense[0], LocalOriginals(tmp_path), None))

    expected, found = answer(engine, whole), answer(engine, grafted)
    assert len(found["tokens"]) == TOKENS
    assert found["tokens"] == expected["tokens"]
    assert found["completion_probabilities"] == expected["completion_probabilities"]
