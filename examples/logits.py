"""Load a model into this process, its layers on workers, and look at the next token's logits.

Usage: python examples/logits.py MODEL [WORKER...]
"""

from __future__ import annotations

import sys

import numpy as np

from ggufcluster import Llama

TEXT = "The weather in Paris is"


def main(model_path: str, workers: list[str]) -> None:
    """Print the five most likely next tokens."""
    with Llama(model_path, workers=workers, n_ctx=1024, logits_all=True) as model:
        tokens = model.tokenize(TEXT.encode())
        model.reset()
        model.eval(tokens)
        logits = model.scores[len(tokens) - 1]
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        for token in np.argsort(-logits)[:5]:
            piece = model.detokenize([int(token)], special=True)
            print(f"{shares[token]:6.1%}  {piece!r}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
