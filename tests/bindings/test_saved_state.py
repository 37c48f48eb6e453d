"""States that were saved with other sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ggufcluster.bindings.saved_state import fitted
from ggufcluster.errors import ModelCallError


def saved(tokens: int, *, rows: int, context: int) -> Any:
    """Make a state of a model with a vocabulary of two."""
    return SimpleNamespace(
        input_ids=np.arange(1, context + 1, dtype=np.intc),
        scores=np.full((min(tokens, rows), 2), 7, dtype=np.single),
        n_tokens=tokens,
        llama_state=b"engine",
        llama_state_size=6,
        seed=5,
    )


@pytest.mark.parametrize(("rows", "kept"), [(2, 2), (3, 3), (16, 3)])
def test_arrays_get_the_size_of_the_model(rows: int, kept: int) -> None:
    """Tokens are all there, logits as far as both keep them; the engine's half is as it was."""
    state = saved(5, rows=3, context=8)
    found = fitted(state, SimpleNamespace, rows=rows, width=2, context=16)
    assert found.input_ids.tolist() == [1, 2, 3, 4, 5] + [0] * 11
    assert found.scores.shape == (min(5, rows), 2)
    assert (found.scores == 7).all(axis=1).sum() == kept
    assert (found.n_tokens, found.seed) == (5, 5)
    assert (found.llama_state, found.llama_state_size) == (b"engine", 6)


def test_a_state_that_cannot_fit_is_refused() -> None:
    """One that is too long and one of another vocabulary are each named."""
    with pytest.raises(ModelCallError, match="has 5 tokens, the context room for 4"):
        fitted(saved(5, rows=3, context=8), SimpleNamespace, rows=3, width=2, context=4)
    with pytest.raises(ModelCallError, match="vocabulary of 2, not 3"):
        fitted(saved(5, rows=3, context=8), SimpleNamespace, rows=3, width=3, context=8)
