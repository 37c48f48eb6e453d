"""Compare two files of llama-results: next-token distributions of the same prompt.

python3 scripts/gpu/compare_logits.py REFERENCE.gguf OTHER.gguf VOCABULARY_SIZE

Prints mean and largest Kullback-Leibler divergence over the tokens, and how often the most
likely token differs. Needs numpy.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def log_probabilities(path: Path, size: int, count: int) -> np.ndarray:
    """Read the last `count` x `size` floats of the file: the logits end it."""
    logits = np.frombuffer(path.read_bytes()[-4 * size * count :], np.float32)
    rows = logits.reshape(count, size).astype(np.float64)
    rows -= rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def main() -> None:
    """Compare the files of the command line."""
    reference, other = Path(sys.argv[1]), Path(sys.argv[2])
    size = int(sys.argv[3])
    count = reference.stat().st_size // (4 * (size + 1)) - 1
    expected, got = (log_probabilities(path, size, count) for path in (reference, other))
    divergence = (np.exp(expected) * (expected - got)).sum(axis=1)
    changed = (expected.argmax(axis=1) != got.argmax(axis=1)).sum()
    print(
        json.dumps(
            {
                "tokens": count,
                "kl_mean": float(divergence.mean()),
                "kl_max": float(divergence.max()),
                "other_top": int(changed),
            }
        )
    )


if __name__ == "__main__":
    main()
