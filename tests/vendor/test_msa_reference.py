"""The CPU reference of sparse attention agrees with transformers, and does what is asked of it.

scripts/gpu/check_golden.py asks the CUDA kernels for the same, where there is a GPU.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest

from tests.vendor.msa_golden import CASES, golden_ids, golden_outputs, sequence, spread
from tests.vendor.msa_numbers import BLOCK, GROUPS, draw, sample
from tests.vendor.msa_reference import Reference, Request, attend, compile_reference

if TYPE_CHECKING:
    from tests.vendor.msa_reference import Floats, Integers, Reply

# Both sides add up to 2,048 products in another order; transformers does so in f32. The outputs
# reach 2, and differ by up to 0.24 between sparse and dense.
TOLERANCE: Final = 2e-6


@dataclass(frozen=True, slots=True)
class Golden:
    """A case beside what the reference answers: ids (token, group, top), outputs (token, ...)."""

    ids: Integers
    outputs: Floats
    reply: Reply


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The reference, compiled once."""
    return compile_reference(tmp_path_factory.mktemp("msa"))


@pytest.fixture(
    scope="module",
    params=[(number, placed) for number in range(len(CASES)) for placed in ("in-order", "spread")],
    ids=lambda param: f"{CASES[param[0]]['keys']}-{CASES[param[0]]['tokens']}-{param[1]}",
)
def golden(reference: Reference, request: pytest.FixtureRequest) -> Golden:
    """Each case, once with positions and cells in step and once scattered over the cells."""
    number, placed = request.param
    case = CASES[number]
    asked = sequence(case["keys"], case["tokens"])
    reply = reference.ask(spread(asked) if placed == "spread" else asked)
    return Golden(golden_ids(case), golden_outputs(number), reply)


def without(request: Request, positions: range) -> Request:
    """Take positions out of a spread sequence, with what their cells held."""
    pos_map = request.pos_map.copy()
    keys = [rows.copy() for rows in (request.index_key, request.key, request.value)]
    for rows in keys:
        rows[0, pos_map[0, positions]] = np.nan
    pos_map[0, positions] = -1
    return dataclasses.replace(
        request, pos_map=pos_map, index_key=keys[0], key=keys[1], value=keys[2]
    )


def seen_by(request: Request, ids: Integers, group: int, position: int) -> list[int]:
    """List the cells of a spread sequence that a token attends to for one group."""
    places = request.pos_map[0, : position + 1]
    blocks = np.arange(position + 1) // request.block
    return [int(cell) for cell in places[np.isin(blocks, ids[group])] if cell >= 0]


def joined(first: Request, second: Request) -> Request:
    """Put two requests into the streams of one."""
    fields = ("pos_map", "position", "index_query", "index_key", "query", "key", "value")
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in fields
    }
    return dataclasses.replace(first, **arrays)


def planted(scores: list[float], **how: int) -> Request:
    """Ask for the last token of a sequence with blocks of 4 and the given score in each block."""
    positions = 4 * len(scores)
    index_key = np.zeros((1, positions, 1, 8), dtype=np.float32)
    index_key[0, :, 0, 0] = -100
    index_key[0, 2::4, 0, 0] = scores
    shape = (1, positions, 1, 8)
    return Request(
        pos_map=np.arange(positions, dtype=np.int32)[None],
        position=np.array([[positions - 1]], dtype=np.int32),
        index_query=np.ones((1, 1, 1, 8), dtype=np.float32),
        index_key=index_key,
        query=np.ones((1, 1, 1, 8), dtype=np.float32),
        key=np.zeros(shape, dtype=np.float32),
        value=np.zeros(shape, dtype=np.float32),
        block=4,
        **how,
    )


def chosen(reference: Reference, request: Request) -> list[int]:
    """List the ids of a request of one token and one group."""
    ids: list[int] = reference.ask(request).ids.reshape(-1).tolist()
    return ids


def test_selection_is_that_of_transformers(golden: Golden) -> None:
    """Every token and group selects the same blocks, wherever the positions lie."""
    assert np.array_equal(golden.reply.ids[0], golden.ids)


def test_outputs_are_those_of_transformers(golden: Golden) -> None:
    """Attention to the selected blocks gives the same outputs up to the order of sums."""
    assert np.abs(sample(golden.reply.outputs[0]) - golden.outputs).max() < TOLERANCE


def test_golden_vectors_tell_sparse_from_dense() -> None:
    """With more than 16 blocks, dense attention is far from the golden outputs."""
    number = len(CASES) - 1
    asked = sequence(CASES[number]["keys"], 1)
    last = asked.position[0, 0] + 1

    dense = attend(asked.query[0, 0], asked.key[0, :last], asked.value[0, :last])

    assert np.abs(sample(dense[None]) - golden_outputs(number)[-1:]).max() > 1e4 * TOLERANCE


@pytest.mark.parametrize("keys", [1, 77, 128, 1025, 2048])
def test_up_to_2048_keys_it_is_dense_attention(reference: Reference, keys: int) -> None:
    """While every visible block can be selected, the outputs are those of dense attention."""
    asked = sequence(keys, 1)

    reply = reference.ask(asked)

    dense = attend(asked.query[0, 0], asked.key[0, :keys], asked.value[0, :keys])
    assert np.abs(reply.outputs[0, 0] - dense).max() < TOLERANCE


def test_missing_blocks_are_minus_one(reference: Reference) -> None:
    """Ids ascend, and the slots for which there is no block follow as -1."""
    assert chosen(reference, planted([5, 9, 7], top=5)) == [0, 1, 2, -1, -1]


def test_best_blocks_are_chosen(reference: Reference) -> None:
    """A block counts by its best key, and the ids are in the order of the sequence."""
    assert chosen(reference, planted([5, 9, 1, 7, 3, 8], top=3, local=0)) == [1, 3, 5]


def test_own_block_is_always_chosen(reference: Reference) -> None:
    """The token's own block takes a place however low its score is."""
    assert chosen(reference, planted([5, 9, 8, 7, -50], top=2)) == [1, 4]


def test_local_and_first_blocks_are_forced(reference: Reference) -> None:
    """As many last and first blocks as asked for come before any score."""
    scores = [-9.0, 5, 9, 8, 7, -8, -7]

    assert chosen(reference, planted(scores, top=4, local=2, init=1)) == [0, 2, 5, 6]


@pytest.mark.parametrize("top", [1, 2, 3, 5])
def test_lower_block_wins_a_tie(reference: Reference, top: int) -> None:
    """Of blocks with equal scores the earlier ones are chosen."""
    assert chosen(reference, planted([4.0] * 6, top=top, local=0)) == list(range(top))


def test_tie_for_the_last_place_goes_to_the_lower_block(reference: Reference) -> None:
    """A higher score comes first and only then the position."""
    assert chosen(reference, planted([1, 4, 4, 9, 4, 0], top=3, local=0)) == [1, 2, 3]


def test_later_positions_are_invisible(reference: Reference) -> None:
    """Neither the selection nor the outputs of a token depend on what comes after it."""
    asked = sequence(2500, 1)
    position = 2400
    early = dataclasses.replace(asked, position=np.array([[position]], dtype=np.int32))
    future = [rows.copy() for rows in (asked.index_key, asked.key, asked.value)]
    for rows in future:
        rows[0, position + 1 :] = 1000
    changed = dataclasses.replace(early, index_key=future[0], key=future[1], value=future[2])

    before, after = reference.ask(early), reference.ask(changed)

    assert np.array_equal(before.ids, after.ids)
    assert np.array_equal(before.outputs, after.outputs)


def test_block_without_cells_is_never_chosen(reference: Reference) -> None:
    """A block whose positions were all removed takes no place, be it forced or not."""
    asked = spread(sequence(2304, 1))
    holed = without(without(asked, range(3 * BLOCK, 4 * BLOCK)), range(17 * BLOCK, 2304))

    ids = reference.ask(dataclasses.replace(holed, init=4)).ids[0, 0]

    assert [3 in group or 17 in group for group in ids.tolist()] == [False] * GROUPS
    assert ids.min() >= 0


@pytest.mark.parametrize("removed", [range(300, 301), range(1000, 1111), range(2000, 2450)])
def test_holes_are_left_out(reference: Reference, removed: range) -> None:
    """Removed positions get no weight, and what is left of their blocks is attended to."""
    asked = without(spread(sequence(2500, 1)), removed)

    reply = reference.ask(asked)

    for group in range(GROUPS):
        cells = seen_by(asked, reply.ids[0, 0], group, 2499)
        heads = slice(16 * group, 16 * group + 16)
        keys, values = (rows[0, cells, group : group + 1] for rows in (asked.key, asked.value))
        expected = attend(asked.query[0, 0, heads], keys, values)
        assert np.abs(reply.outputs[0, 0, heads] - expected).max() < TOLERANCE


def test_nothing_visible_gives_zero(reference: Reference) -> None:
    """A token that sees no position gets no block and an output of zero."""
    reply = reference.ask(without(spread(sequence(200, 1)), range(256)))

    assert np.array_equal(reply.ids, np.full_like(reply.ids, -1))
    assert not reply.outputs.any()


def test_streams_are_independent(reference: Reference) -> None:
    """Two streams at other positions, in other cells, give what each gives alone."""
    first = spread(sequence(2500, 3))
    cells = first.key.shape[1]
    second = dataclasses.replace(
        first,
        pos_map=cells - 1 - np.roll(first.pos_map, 640, axis=1),
        position=np.array([[40, 2100, 1300]], dtype=np.int32),
        index_query=draw("index_query", 9000, 3)[None],
        index_key=first.index_key[:, ::-1],
        query=draw("query", 9000, 3)[None],
        key=first.key[:, ::-1],
        value=first.value[:, ::-1],
    )

    both = reference.ask(joined(first, second))

    alone = [reference.ask(request) for request in (first, second)]
    assert np.array_equal(both.ids, np.concatenate([reply.ids for reply in alone]))
    assert np.array_equal(both.outputs, np.concatenate([reply.outputs for reply in alone]))
