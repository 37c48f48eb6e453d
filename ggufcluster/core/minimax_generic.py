"""How sparse layers attend with llama.cpp's generic operators; a part of `minimax_graph`.

A prompt goes through masks over all cells, a single token reads keys that are gathered first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.core.graph_memory import F16, I32, Node

if TYPE_CHECKING:
    from ggufcluster.core.minimax_graph import StageBuilder


def prompt(builder: StageBuilder, normed: Node, query: Node) -> Node:
    """Attend stream by stream through a mask of all cells for each index head."""
    graph, shape, batch = builder.graph, builder.shape, builder.batch
    tokens = batch.tokens // batch.streams
    index_query, made = None, None
    for _ in range(batch.streams):
        slots = builder.part("slots", batch.positions, size=I32, whole=batch.positions)
        keys = graph.compute(slots, shape=(shape.index_size, batch.positions))
        if index_query is None:
            index_query = builder.heads(normed, shape.index_size, shape.index_heads)
        marks = _marked_blocks(builder, graph.view(index_query), keys)
        mask = _widened(builder, marks)
        part = graph.view(builder.flash(graph.view(query), mask, streams=1))
        part = graph.compute(part, shape=(shape.value_size * shape.query_heads, tokens))
        if made is not None:
            part = graph.compute(made, part, shape=(part.shape[0], made.shape[1] + tokens))
        made = part
    assert made is not None
    return made


def decode(builder: StageBuilder, normed: Node, query: Node) -> Node:
    """Attend for one token of each stream to keys and values that are gathered first."""
    graph, shape, batch = builder.graph, builder.shape, builder.batch
    slots = builder.shared("slots", batch.positions, batch.streams, size=I32)
    keys = graph.compute(slots, shape=(shape.index_size, batch.positions, batch.streams))
    index_query = builder.heads(normed, shape.index_size, shape.index_heads)
    positions, rows = _gathered(builder, _best_blocks(builder, index_query, keys))
    gathered = [_gather(builder, rows, shape.key_size), _gather(builder, rows, shape.value_size)]
    visible = builder.given(batch.positions, batch.streams)
    gathered.append(_gather(builder, positions, 1, visible))
    made = builder.flash(graph.view(query), *map(graph.view, gathered), streams=batch.streams)
    return graph.view(made)


def _marked_blocks(builder: StageBuilder, query: Node, keys: Node) -> Node:
    """Mark the best blocks of each token and index head."""
    graph, shape, batch = builder.graph, builder.shape, builder.batch
    heads, tokens = shape.index_heads, batch.tokens // batch.streams
    blocks = batch.positions // shape.block
    scores = graph.compute(keys, query, shape=(batch.positions, heads, tokens))
    whole = batch.positions * batch.tokens
    visible = builder.part("visible", batch.positions, tokens, whole=whole)
    scores = graph.view(graph.view(scores), beside=(visible,))
    best = graph.compute(scores, shape=(blocks, heads, tokens))
    bias = builder.part("bias", blocks, tokens, whole=blocks * batch.tokens)
    best = graph.rewrite(best, bias)
    order = graph.compute(best, shape=(min(shape.blocks, blocks), heads, tokens), size=I32)
    zeros = graph.rewrite(graph.compute(order, shape=order.shape))
    floor = graph.compute(bias, shape=(blocks, 1, tokens))
    floor = graph.compute(floor, shape=floor.shape, size=F16)
    floor = graph.compute(floor, shape=(blocks, heads, tokens), size=F16)
    marks = graph.view(graph.view(floor), beside=(graph.view(zeros), graph.view(order)))
    marks = graph.compute(graph.view(marks), shape=(blocks, tokens, heads), size=F16)
    return graph.compute(graph.view(marks), shape=(tokens * heads, blocks), size=F16)


def _widened(builder: StageBuilder, marks: Node) -> Node:
    """Turn marks of blocks into a mask of cells."""
    graph, shape, batch = builder.graph, builder.shape, builder.batch
    heads, tokens = shape.index_heads, batch.tokens // batch.streams
    owners = builder.part("owners", batch.cells, size=I32, whole=batch.cells * batch.streams)
    wide = graph.compute(marks, owners, shape=(tokens * heads, batch.cells))
    wide = graph.compute(graph.view(wide), shape=(batch.cells, tokens * heads))
    wide = graph.view(wide, beside=(_float_mask(builder, tokens),))
    return graph.compute(graph.view(wide), shape=(batch.cells, tokens, heads), size=F16)


def _float_mask(builder: StageBuilder, tokens: int) -> Node:
    """Return the part of one stream; other devices get a copy for each layer and stream."""
    cells = builder.batch.cells
    if not builder.stage.masks_here:
        return builder.given(cells, tokens)
    if builder.float_mask is None:
        mask = builder.mask()
        builder.float_mask = builder.graph.compute(mask, shape=mask.shape)
    return builder.graph.view(builder.float_mask, cells, tokens)


def _best_blocks(builder: StageBuilder, query: Node, keys: Node) -> Node:
    graph, shape, batch = builder.graph, builder.shape, builder.batch
    heads, blocks = shape.index_heads, batch.positions // shape.block
    scores = graph.compute(keys, query, shape=(batch.positions, heads, batch.streams))
    scores = graph.view(scores, beside=(builder.given(batch.positions, batch.streams),))
    best = graph.compute(scores, shape=(blocks, heads, batch.streams))
    best = graph.rewrite(best, builder.given(blocks, batch.streams))
    count = min(shape.blocks, blocks)
    return graph.compute(best, shape=(count, heads, batch.streams), size=I32)


def _gathered(builder: StageBuilder, order: Node) -> tuple[Node, Node]:
    """Return the positions and the cache rows of all keys of the chosen blocks."""
    graph, shape, batch = builder.graph, builder.shape, builder.batch
    keys = (shape.block, *order.shape)
    starts = graph.view(graph.rewrite(graph.compute(order, shape=order.shape)))
    within = graph.compute(shape=(shape.block,))
    positions = graph.rewrite(graph.compute(starts, shape=keys), graph.view(within))
    positions = graph.compute(graph.view(positions), shape=keys, size=I32)
    slots = builder.given(batch.positions, batch.streams)
    rows = graph.compute(slots, positions, shape=(1, *keys))
    rows = graph.compute(graph.view(rows), shape=keys)
    rows = graph.rewrite(rows, graph.view(graph.compute(shape=(shape.key_heads,))))
    return positions, graph.compute(graph.view(rows), shape=keys, size=I32)


def _gather(builder: StageBuilder, rows: Node, size: int, *sources: Node) -> Node:
    """Gather a float row for each key, then make it f16."""
    graph = builder.graph
    found = graph.compute(rows, *sources, shape=(size, *rows.shape))
    return graph.compute(graph.view(found), shape=found.shape, size=F16)
