"""The golden vectors of sparse attention and the requests that they answer.

golden.json names what made them, and the selected blocks; golden.f32 holds the outputs, as
`msa_numbers.sample` keeps them. Both were made by scripts/gpu/make_msa_golden.py.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tests.vendor.msa_numbers import BLOCK, GROUPS, TOP, draw, sample
from tests.vendor.msa_reference import ROOT, Request

if TYPE_CHECKING:
    from tests.vendor.msa_reference import Floats, Integers

_FOLDER: Final = ROOT / "tests" / "data" / "msa"
CASES: Final[list[dict[str, Any]]] = json.loads((_FOLDER / "golden.json").read_text())["cases"]
_LONGEST: Final = 36 * BLOCK


@functools.cache
def _all_rows(name: str) -> Floats:
    """Draw a whole cache once."""
    return draw(name, 0, _LONGEST)


def sequence(keys: int, tokens: int) -> Request:
    """Ask for the last tokens of a sequence that lies in its cells in order, an entry a block."""
    cells = -(-keys // BLOCK) * BLOCK
    first = keys - tokens
    return Request(
        pos_map=np.arange(0, cells, BLOCK, dtype=np.int32)[None],
        position=np.arange(first, keys, dtype=np.int32)[None],
        step=BLOCK,
        index_query=draw("index_query", first, tokens)[None],
        index_key=_all_rows("index_key")[None, :cells],
        query=draw("query", first, tokens)[None],
        key=_all_rows("key")[None, :cells],
        value=_all_rows("value")[None, :cells],
    )


def spread(request: Request) -> Request:
    """Put the positions into other cells in no order, with an entry each and free cells of NaN."""
    cells = request.key.shape[1]
    places = np.random.default_rng(7).permutation(cells + 50)[:cells]

    def moved(rows: Floats) -> Floats:
        out = np.full((1, cells + 50, *rows.shape[2:]), np.nan, dtype=np.float32)
        out[0, places] = rows[0]
        return out

    return dataclasses.replace(
        request,
        pos_map=places.astype(np.int32)[None],
        step=1,
        index_key=moved(request.index_key),
        key=moved(request.key),
        value=moved(request.value),
    )


def golden_ids(case: dict[str, Any]) -> Integers:
    """Read the blocks of a case, shape (token, group, top)."""
    ids = np.full((case["tokens"], GROUPS, TOP), -1, dtype=np.int32)
    for token, groups in enumerate(case["ids"]):
        for group, words in enumerate(groups):
            blocks = [int(word) for word in words.split()]
            ids[token, group, : len(blocks)] = blocks
    return ids


def golden_outputs(number: int) -> Floats:
    """Read the kept outputs of a case, shape (token, head, 16)."""
    outputs = np.fromfile(_FOLDER / "golden.f32", "<f4").reshape(
        -1, *sample(draw("query", 0, 1)).shape[1:]
    )
    first = sum(case["tokens"] for case in CASES[:number])
    return outputs[first : first + CASES[number]["tokens"]]
