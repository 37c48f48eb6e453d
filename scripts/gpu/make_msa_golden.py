"""Make the golden vectors of sparse attention with the minimax_m3_vl model of transformers.

Run from the root of the checkout, where torch, numpy and transformers 5.17 are:

    python3 -m scripts.gpu.make_msa_golden tests/data/msa

Writes golden.json and golden.f32 there. No GPU is needed: the few tokens take seconds on a CPU.

What runs is the model's own attention layer with its own cache, indexer, block mask and attention;
only what projects hidden states is replaced by given rows, the norms by identity, and the rotary
embedding is taken at position 0, where it changes nothing. So the rows reach scores and attention
as drawn, and need not be stored.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DynamicCache
from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig
from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import (
    MiniMaxM3VLAttention,
    MiniMaxM3VLRotaryEmbedding,
)

from tests.vendor.msa_numbers import (
    BLOCK,
    DIM,
    GROUPS,
    HEADS,
    SEEDS,
    TOP,
    block_scores,
    draw,
    sample,
)

# Keys, and how many of the last positions ask.
CASES = (
    (1, 1),
    (100, 1),
    (128, 1),
    (130, 3),
    (1999, 1),
    (2048, 1),
    (2049, 2),
    (2177, 1),
    (2500, 7),
    (3333, 3),
    (4096, 1),
    (4485, 6),
)
HIDDEN = 64


class Given(torch.nn.Module):
    """Stands for a projection and returns the same rows whatever comes in."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the rows in the shape of a projection's output."""
        return self.rows.reshape(1, hidden.shape[1], -1)


def make_config() -> MiniMaxM3VLTextConfig:
    """Describe one sparse layer with the heads of MiniMax-M3."""
    sparse = {
        "sparse_num_index_heads": GROUPS,
        "sparse_index_dim": DIM,
        "sparse_block_size": BLOCK,
        "sparse_topk_blocks": TOP,
        "sparse_local_block": 1,
        "sparse_attention_freq": [1],  # without it every layer attends to everything
    }
    return MiniMaxM3VLTextConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=GROUPS,
        head_dim=DIM,
        partial_rotary_factor=0.5,  # without it the whole head rotates
        sparse_attention_config=sparse,
        moe_layer_freq=[0],  # without it every layer has experts
        attn_implementation="eager",
    )


def rows(name: str, first: int, count: int) -> torch.Tensor:
    """Draw rows in the layout of a cache: (1, head, position, dim)."""
    return torch.from_numpy(draw(name, first, count)).transpose(0, 1)[None].contiguous()


def filled_cache(config: MiniMaxM3VLTextConfig, count: int) -> DynamicCache:
    """Make the model's cache with the first `count` positions in it."""
    cache = DynamicCache(config=config)
    if count:
        cache.update(rows("key", 0, count), rows("value", 0, count), 0)
        cache.layers[0].update_index(rows("index_key", 0, count))
    return cache


def layer(config: MiniMaxM3VLTextConfig, first: int, count: int) -> MiniMaxM3VLAttention:
    """Make the attention layer whose projections give the rows of some positions."""
    attention = MiniMaxM3VLAttention(config, 0).eval()
    assert attention.indexer is not None
    for name, owner, field in (
        ("query", attention, "q"),
        ("key", attention, "k"),
        ("index_query", attention.indexer, "q"),
        ("index_key", attention.indexer, "k"),
    ):
        setattr(owner, f"{field}_proj", Given(torch.from_numpy(draw(name, first, count))))
        setattr(owner, f"{field}_norm", torch.nn.Identity())
    attention.v_proj = Given(torch.from_numpy(draw("value", first, count)))
    attention.o_proj = torch.nn.Identity()
    return attention


def run(config: MiniMaxM3VLTextConfig, keys: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Select and attend for the last tokens; ids (token, group, block), outputs (token, ...)."""
    first = keys - tokens
    attention = layer(config, first, tokens)
    seen: list[torch.Tensor] = []
    attention.indexer.register_forward_hook(lambda _module, _args, ids: seen.append(ids))
    hidden = torch.zeros(1, tokens, HIDDEN)
    still = MiniMaxM3VLRotaryEmbedding(config)(hidden, torch.zeros(1, tokens, dtype=torch.long))
    with torch.no_grad():
        output, _ = attention(
            hidden,
            still,
            None,
            past_key_values=filled_cache(config, first),
            position_ids=torch.arange(first, keys)[None],
        )
    ids = seen[0][0].transpose(0, 1).numpy()
    return ids, output.reshape(tokens, HEADS, DIM).numpy()


def in_order(ids: np.ndarray) -> list[int]:
    """Sort the selected blocks; the order of topk is that of the scores."""
    return sorted(int(block) for block in ids if block >= 0)


def margin(keys: int, tokens: int) -> float:
    """Find the least distance between the last block chosen by score and the first one left."""
    least = np.inf
    index_key = draw("index_key", 0, keys)[:, 0]
    for position in range(keys - tokens, keys):
        scores = block_scores(draw("index_query", position, 1)[0], index_key, position)
        falling = -np.sort(-scores[:, :-1], axis=1)  # the token's own block is forced
        if falling.shape[1] >= TOP:
            least = min(least, (falling[:, TOP - 2] - falling[:, TOP - 1]).min())
    return float(least)


def header(config: MiniMaxM3VLTextConfig) -> dict[str, Any]:
    """Say what made the vectors."""
    return {
        "made_by": "scripts/gpu/make_msa_golden.py",
        "versions": {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "machine": f"{platform.machine()} CPU, float32",
        "seeds": SEEDS,
        "config": {
            name: getattr(config, name)
            for name in (
                "num_attention_heads",
                "num_key_value_heads",
                "head_dim",
                "index_n_heads",
                "index_head_dim",
                "index_block_size",
                "index_topk_blocks",
                "index_local_blocks",
                "layer_types",
                "rope_parameters",
            )
        },
    }


def main() -> None:
    """Run every case and write both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    config = make_config()
    cases, outputs, least = [], [], np.inf
    for keys, tokens in CASES:
        ids, output = run(config, keys, tokens)
        lines = [[" ".join(map(str, in_order(group))) for group in token] for token in ids]
        cases.append({"keys": keys, "tokens": tokens, "ids": lines})
        outputs.append(sample(output))
        least = min(least, margin(keys, tokens))
    assert least > 0, "a tie: choose other seeds, the selection would not be defined"
    document = {**header(config), "least_margin": least, "cases": cases}
    (folder / "golden.json").write_text(json.dumps(document, indent=1) + "\n")
    np.concatenate(outputs).astype("<f4").tofile(folder / "golden.f32")


if __name__ == "__main__":
    main()
