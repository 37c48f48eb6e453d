"""A saved state, cut to the model that is to take it over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ggufcluster.errors import ModelCallError

if TYPE_CHECKING:
    from collections.abc import Callable


def fitted(state: Any, make: Callable[..., Any], *, rows: int, width: int, context: int) -> Any:
    """Return a state whose Python half has the size that a model keeps.

    llama_cpp copies whole arrays, and theirs are as long as the context, or the batch, of the model
    that was saved; the engine's half fits any placement.

    Args:
        state: What was saved.
        make: Makes a state.
        rows: Rows of logits that the model keeps.
        width: Numbers in each, the size of its vocabulary.
        context: Tokens of its context.

    Raises:
        ModelCallError: It holds more tokens than the context, or is of another vocabulary.
    """
    if state.n_tokens > context:
        reason = f"the state has {state.n_tokens:,} tokens, the context room for {context:,}"
        raise ModelCallError(reason)
    if state.scores.shape[1] != width:
        reason = f"the state is of a vocabulary of {state.scores.shape[1]:,}, not {width:,}"
        raise ModelCallError(reason)
    scores = np.zeros((min(state.n_tokens, rows), width), dtype=np.single)
    known = min(len(scores), len(state.scores))
    scores[:known] = state.scores[:known]
    tokens = np.zeros(context, dtype=np.intc)
    tokens[: state.n_tokens] = state.input_ids[: state.n_tokens]
    return make(
        input_ids=tokens,
        scores=scores,
        n_tokens=state.n_tokens,
        llama_state=state.llama_state,
        llama_state_size=state.llama_state_size,
        seed=state.seed,
    )
