"""MiniMax-M3's graph of one ubatch on one device, as llama.cpp builds it at our pin.

Only shapes and the order of operators are here (src/models/minimax-m3.cpp, llama-graph.cpp and
our overlay's ggufcluster-msa.cpp). Tests compare the sizes with what real starts report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ggufcluster.core import minimax_generic
from ggufcluster.core.graph_memory import F16, F32, I32, I64, Graph, Node

if TYPE_CHECKING:
    from ggufcluster.core.network import NetworkShape

_CPU_ALIGNMENT = 32
_LEAST_ROTATION = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """What is computed at once, against how much of the cache, and how.

    Attributes:
        tokens: Tokens of the ubatch over all streams.
        streams: Sequences with a cache of their own.
        cells: Cells of one stream's cache that take part.
        positions: Positions of one stream that take part, whole blocks.
        outputs: Tokens whose logits are wanted.
        path: How sparse layers attend: ``native``, ``generic`` or ``dense``.
        rotated: Whether keys and values are rotated, as they are before they are quantised.
        half_copies: Whether flash attention turns keys and values into f16 first, behind its
            result in the buffer, as GPUs do with quantised ones.
        copies: Copies of every input of a device, for a pipeline; 1 without one.
        local: Whether everything is computed where the inputs lie: on the head's CPU.
        fused: Whether operators of the experts are fused, which keeps their inputs longer: on a GPU
            of the head itself.
    """

    tokens: int
    streams: int
    cells: int
    positions: int
    outputs: int
    path: str
    rotated: bool
    half_copies: bool = False
    copies: int = 1
    local: bool = False
    fused: bool = False

    @property
    def decodes(self) -> bool:
        """Whether each stream has a single token, which the generic path treats differently."""
        return self.tokens == self.streams


@dataclass(frozen=True, slots=True)
class Stage:
    """The layers of one device.

    Attributes:
        dense: Leading layers with full attention and a plain feed-forward part.
        sparse: Layers after them.
        is_last: Whether the output head follows.
        masks_here: Whether the generic path makes its float mask on this device.
    """

    dense: int
    sparse: int
    is_last: bool
    masks_here: bool = False


def stage_graph(shape: NetworkShape, batch: Batch, stage: Stage) -> Graph:
    """Return the graph of one device's layers."""
    builder = StageBuilder(shape, batch, stage)
    builder.build()
    return builder.graph


def input_bytes(shape: NetworkShape, batch: Batch) -> int:
    """Return the buffer of the head's CPU: each input in its copies, and the embedded tokens."""
    tokens, streams = batch.tokens, batch.streams
    sizes = [tokens * I32, shape.width * tokens * F32, tokens * I32, tokens * I64, tokens * I64]
    sizes.append(batch.outputs * I32)
    sizes += [F32 * side**2 for side in _rotations(shape, batch)]
    if batch.path != "dense":
        sizes.append(tokens * I64)
    # The native path knows what is visible by positions, in the leading layers as well.
    sizes.append(batch.cells * (streams * I32 if batch.path == "native" else tokens * F16))
    if batch.path == "generic":
        blocks = batch.positions // shape.block
        sizes += [blocks * tokens * F32, batch.positions * tokens * F32]
        sizes += [batch.positions * streams * I32, batch.cells * streams * I32]
    padded = sum(-(-size // _CPU_ALIGNMENT) * _CPU_ALIGNMENT for size in sizes)
    return padded * batch.copies + shape.width * tokens * F32


def _rotations(shape: NetworkShape, batch: Batch) -> tuple[int, ...]:
    """Return the sides of the matrices that rotate keys and values."""
    if not batch.rotated:
        return ()
    # Keys take the largest power of two that divides them, values the smallest.
    side = _LEAST_ROTATION
    while shape.key_size % (2 * side) == 0:
        side *= 2
    return side, _LEAST_ROTATION


@dataclass(slots=True)
class StageBuilder:
    """Builds the graph of one device; `build` is called once."""

    shape: NetworkShape
    batch: Batch
    stage: Stage
    graph: Graph = field(default_factory=Graph)
    float_mask: Node | None = None
    _shared: dict[str, Node] = field(default_factory=dict)

    def build(self) -> None:
        """Add every tensor from the first layer's input to what leaves the device."""
        flow = self._enter()
        layers = self.stage.dense + self.stage.sparse
        for layer in range(layers):
            flow = self._layer(flow, dense=layer < self.stage.dense, last=layer == layers - 1)
        if self.stage.is_last:
            outputs = (self.shape.vocabulary, self.batch.outputs)
            self.graph.compute(self._norm(flow), shape=outputs)

    def given(self, *shape: int, size: int = F32) -> Node:
        """Add an input; a pipeline has further copies of it, which are filled ahead."""
        kept = self.batch.copies > 1
        for _ in range(self.batch.copies - 1):
            self.graph.given(*shape, size=size, kept=True)
        return self.graph.given(*shape, size=size, kept=kept)

    def shared(self, name: str, *shape: int, size: int = F32) -> Node:
        """Return an input that several layers read, adding it when it is first asked for."""
        if name not in self._shared:
            self._shared[name] = self.given(*shape, size=size)
        return self._shared[name]

    def part(self, name: str, *shape: int, size: int = F32, whole: int) -> Node:
        """Return a part of an input: elsewhere each part is an input of its own."""
        if self.batch.local:
            return self.graph.view(self.shared(name, whole, size=size), *shape)
        return self.given(*shape, size=size)

    def mask(self) -> Node:
        """Return the mask of full attention."""
        return self.shared("mask", self.batch.cells, self.batch.tokens, size=F16)

    def heads(self, source: Node, size: int, count: int, *, norm: bool = True) -> Node:
        """Project to heads; those of queries and keys are normed and told their positions."""
        made = self.graph.compute(source, shape=(size * count, self.batch.tokens))
        made = self.graph.view(made, size, count, self.batch.tokens)
        return self.graph.rewrite(self._norm(made), self._positions()) if norm else made

    def flash(self, *sources: Node, streams: int) -> Node:
        """Add flash attention over so many streams at once."""
        shape, batch = self.shape, self.batch
        tokens = batch.tokens * streams // batch.streams
        values = shape.value_size * shape.query_heads * tokens
        if batch.half_copies:
            kept = shape.key_heads * (shape.key_size + shape.value_size)
            values += kept * batch.cells * streams * F16 // F32
        return self.graph.compute(*sources, shape=(values,))

    def _enter(self) -> Node:
        shape, batch = self.shape, self.batch
        if batch.local:
            self.given(shape.width, batch.tokens)  # embedded tokens that a caller could give
            token_ids = self.given(batch.tokens, size=I32)
            return self.graph.compute(token_ids, shape=(shape.width, batch.tokens))
        return self.given(shape.width, batch.tokens)

    def _positions(self) -> Node:
        return self.shared("positions", self.batch.tokens, size=I32)

    def _norm(self, source: Node) -> Node:
        return self.graph.rewrite(self.graph.rewrite(source))

    def _layer(self, flow: Node, *, dense: bool, last: bool) -> Node:
        graph, shape = self.graph, self.shape
        normed = self._norm(flow)
        attended = self._attended(normed, dense=dense)
        attended = graph.compute(attended, shape=(shape.width, self.batch.tokens))
        if last and self.stage.is_last:
            wanted = self.given(self.batch.outputs, size=I32)
            rows = (shape.width, self.batch.outputs)
            attended = graph.compute(attended, wanted, shape=rows)
            flow = graph.compute(flow, wanted, shape=rows)
        flow = graph.rewrite(attended, flow)
        normed = self._norm(flow)
        if dense:
            return graph.rewrite(self._feed(normed, shape.dense_width), flow)
        routed = self._experts(normed)
        shared = self._feed(normed, shape.expert_width * shape.shared_experts)
        return graph.rewrite(graph.rewrite(routed, shared), flow)

    def _attended(self, normed: Node, *, dense: bool) -> Node:
        if not dense and self.batch.path != "dense":
            return self._sparse(normed)
        return self._all_blocks(normed) if self.batch.path == "native" else self._full(normed)

    def _all_blocks(self, normed: Node) -> Node:
        query, key, value = self._cached(normed, value_first=False)
        self._store(key, value)
        return self._turned(self._joined(self._by_position(query)), 1)

    def _full(self, normed: Node) -> Node:
        query, key, value = self._cached(normed, value_first=True)
        self._store(key, value)
        made = self.flash(self.graph.view(query), self.mask(), streams=self.batch.streams)
        return self._turned(self._joined(made), 1)

    def _sparse(self, normed: Node) -> Node:
        graph, shape = self.graph, self.shape
        index_key = self.heads(normed, shape.index_size, 1)
        places = self.shared("index places", self.batch.tokens, size=I64)
        graph.store(graph.view(index_key), places)
        query, key, value = self._cached(normed, value_first=False)
        self._store(key, value)
        if self.batch.path == "native":
            made = self._native(normed, query)
        elif self.batch.decodes:
            made = minimax_generic.decode(self, normed, query)
        else:
            made = minimax_generic.prompt(self, normed, query)
        return self._turned(self._joined(made), 1)

    def _cached(self, normed: Node, *, value_first: bool) -> tuple[Node, Node, Node]:
        shape = self.shape
        query = self._turned(self.heads(normed, shape.key_size, shape.query_heads), 0)

        def make_value() -> Node:
            made = self.heads(normed, shape.value_size, shape.key_heads, norm=False)
            return self._turned(made, 1)

        value = make_value() if value_first else None
        key = self._turned(self.heads(normed, shape.key_size, shape.key_heads), 0)
        return query, key, value or make_value()

    def _turned(self, heads: Node, which: int) -> Node:
        """Rotate what goes into a quantised cache, or turn back what came out."""
        sides = _rotations(self.shape, self.batch)
        if not sides:
            return heads
        side = sides[which]
        matrix = self.shared(f"rotation {which}", side, side)
        count = 1
        for extent in heads.shape:
            count *= extent
        flat = self.graph.view(heads, side, count // side)
        return self.graph.view(self.graph.compute(matrix, flat, shape=flat.shape), *heads.shape)

    def _store(self, key: Node, value: Node) -> None:
        graph, tokens = self.graph, self.batch.tokens
        graph.store(graph.view(key), self.shared("key places", tokens, size=I64))
        graph.store(graph.view(value), self.shared("value places", tokens, size=I64))

    def _joined(self, made: Node) -> Node:
        width = self.shape.value_size * self.shape.query_heads
        return self.graph.view(made, width, self.batch.tokens)

    def _native(self, normed: Node, query: Node) -> Node:
        graph, shape, batch = self.graph, self.shape, self.batch
        index_query = self.heads(normed, shape.index_size, shape.index_heads)
        chosen = (shape.blocks, shape.index_heads, batch.tokens)
        ids = graph.compute(index_query, *self._places(), shape=chosen, size=I32)
        return self._by_position(query, ids)

    def _places(self) -> tuple[Node, Node]:
        cells, streams = self.batch.cells, self.batch.streams
        return self.shared("map", cells, streams, size=I32), self._positions()

    def _by_position(self, *sources: Node) -> Node:
        made = (self.shape.value_size, self.shape.query_heads, self.batch.tokens)
        return self.graph.compute(*sources, *self._places(), shape=made)

    def _feed(self, normed: Node, inner: int) -> Node:
        graph, tokens = self.graph, normed.shape[1]
        gate = graph.compute(normed, shape=(inner, tokens))
        up = graph.compute(normed, shape=(inner, tokens))
        both = graph.compute(gate, up, shape=(inner, tokens))
        return graph.compute(both, shape=(self.shape.width, tokens))

    def _experts(self, normed: Node) -> Node:
        graph, shape, tokens = self.graph, self.shape, normed.shape[1]
        weights, chosen = self._routing(normed)
        normed = graph.view(normed, shape.width, 1, tokens)
        inner = (shape.expert_width, shape.experts_used, tokens)
        gate = graph.compute(normed, chosen, shape=inner)
        up = graph.compute(normed, chosen, shape=inner)
        both = graph.compute(gate, up, shape=inner)
        down = graph.compute(both, chosen, shape=(shape.width, shape.experts_used, tokens))
        weighted = graph.rewrite(down, weights)
        parts = range(shape.experts_used)
        first, *others = [graph.view(weighted, shape.width, tokens) for _ in parts]
        if not others:
            return graph.compute(first, shape=first.shape)
        # The parts lie between each other: nothing can be written over them.
        total = graph.compute(first, others[0], shape=first.shape)
        for part in others[1:]:
            total = graph.rewrite(total, part)
        self._keep(down, weights)
        return total

    def _keep(self, *nodes: Node) -> None:
        if self.batch.fused:
            self.graph.store(*nodes)

    def _routing(self, normed: Node) -> tuple[Node, Node]:
        """Return the weights of the experts that each token goes through, and which they are."""
        graph, shape, tokens = self.graph, self.shape, normed.shape[1]
        used = shape.experts_used
        scores = graph.compute(normed, shape=(shape.experts, tokens))
        chances = graph.rewrite(scores)
        single = graph.view(chances, 1, shape.experts, tokens)
        biased = graph.rewrite(chances)
        order = graph.compute(biased, shape=(shape.experts, tokens), size=I32)
        chosen = graph.view(order, used, tokens)
        weights = graph.view(graph.compute(single, chosen, shape=(1, used, tokens)), used, tokens)
        total = graph.rewrite(graph.compute(weights, shape=(1, tokens)))
        weights = graph.view(graph.rewrite(weights, total), 1, used, tokens)
        weights = graph.rewrite(weights)
        self._keep(scores, chances, biased, order)
        return weights, chosen
