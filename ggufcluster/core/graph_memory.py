"""How much memory a computation graph needs on one device, without computing it.

llama.cpp lays the tensors of a graph out in one buffer a device before it runs: a tensor gets the
smallest hole that holds it, an elementwise operator may write over its input, and what nobody reads
any more becomes a hole again. Its report of the compute buffer is the highest address used. The
same rules over the same shapes give the same number (ggml-alloc.c at our pin).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

F32, F16, I64, I32 = 4, 2, 8, 4


@dataclass(slots=True, eq=False)
class Node:
    """One tensor of a graph.

    Attributes:
        bytes: Its own size; 0 if it owns no memory here: a view, or a write into a cache.
        layout: Element size and shape; an operator can only write over a tensor of its layout.
        sources: What it is computed from; weights and caches are left out, they lie elsewhere.
        viewed: The tensor whose memory a view shows, None if it is no view.
        in_place: Whether the operator may write over a source.
        kept: Whether its memory is never given back, as of inputs that a pipeline fills ahead.
        readers: Operators that still have to read it.
        views: Views of it that are still in use.
        start: Its address while it holds memory, else -1.
    """

    bytes: int
    layout: tuple[int, ...]
    sources: tuple[Node, ...] = ()
    viewed: Node | None = None
    in_place: bool = False
    kept: bool = False
    readers: int = 0
    views: int = 0
    start: int = -1

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions, row length first."""
        return self.layout[1:]

    def counted(self) -> None:
        """Register it with what it reads."""
        if self.viewed is not None:
            self.viewed.views += 1
        for source in self.sources:
            source.readers += 1

    def place(self, memory: _Memory) -> None:
        """Find room for it, over a source if that may be."""
        if self.start >= 0 or not self.bytes:
            return
        reused = next((s for s in self.sources if self.in_place and s.may_become(self)), None)
        if reused is None:
            self.start = memory.take(self.bytes)
        else:
            self.start, reused.start = reused.start, -1

    def may_become(self, node: Node) -> bool:
        """Say whether an operator may write its result over this; never through a view."""
        alone = self.readers == 1 and not self.views
        return self.start >= 0 and alone and not self.kept and self.layout == node.layout

    def was_read(self, memory: _Memory) -> None:
        """Count one reader less, and give the memory back after the last."""
        self.readers -= 1
        if self.readers or self.views:
            return
        owner = self.viewed or self
        owner.views -= owner is not self
        if owner.start >= 0 and not (owner.views or owner.readers or owner.kept):
            memory.give(owner.start, owner.bytes)
            owner.start = -1


@dataclass(slots=True)
class Graph:
    """The tensors of one device: its inputs, and the rest in the order of computation."""

    inputs: list[Node] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)

    def given(self, *shape: int, size: int = F32, kept: bool = False) -> Node:
        """Add a tensor that comes from elsewhere; it has its place before all others."""
        node = Node(size * prod(shape), (size, *shape), kept=kept)
        self.inputs.append(node)
        return node

    def compute(self, *sources: Node, shape: tuple[int, ...], size: int = F32) -> Node:
        """Add an operator that needs memory for its result."""
        return self._add(Node(size * prod(shape), (size, *shape), sources))

    def rewrite(self, *sources: Node) -> Node:
        """Add an elementwise operator with a result like its first source."""
        layout = sources[0].layout
        return self._add(Node(prod(layout), layout, sources, in_place=True))

    def view(self, source: Node, *shape: int, beside: tuple[Node, ...] = ()) -> Node:
        """Add another look at a tensor's memory, or an operator that changes it where it lies.

        Without a shape it has the source's; such an operator also reads what is `beside`.
        """
        layout = (source.layout[0], *(shape or source.shape))
        owner = source.viewed or source
        return self._add(Node(0, layout, (source, *beside), viewed=owner))

    def store(self, *sources: Node) -> None:
        """Add an operator that writes into memory outside, such as a cache."""
        self._add(Node(0, (), sources))

    def _add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node


def buffer_bytes(graph: Graph, *, alignment: int) -> int:
    """Return the size of the buffer that holds a graph, which is used up by this.

    Args:
        graph: The tensors in order.
        alignment: What every size is rounded up to, in bytes; a power of two.
    """
    memory = _Memory(alignment)
    for node in graph.inputs:
        node.place(memory)
    for node in graph.nodes:
        node.counted()
    for node in graph.nodes:
        node.place(memory)
        for source in node.sources:
            source.was_read(memory)
    return memory.highest


@dataclass(slots=True)
class _Memory:
    """Addresses from 0 upwards; `holes` are start and size of what is free below the end."""

    alignment: int
    highest: int = 0
    end: int = 0
    holes: list[tuple[int, int]] = field(default_factory=list)

    def take(self, size: int) -> int:
        size = self._padded(size)
        fitting = [hole for hole in self.holes if hole[1] >= size]
        if not fitting:
            start, self.end = self.end, self.end + size
            self.highest = max(self.highest, self.end)
            return start
        # Of equal holes the last one is taken.
        hole = min(reversed(fitting), key=lambda one: one[1])
        self.holes.remove(hole)
        if hole[1] > size:
            self._insert(hole[0] + size, hole[1] - size)
        return hole[0]

    def give(self, start: int, size: int) -> None:
        size = self._padded(size)
        for hole in [h for h in self.holes if h[0] + h[1] == start or start + size == h[0]]:
            self.holes.remove(hole)
            start, size = min(start, hole[0]), size + hole[1]
        if start + size == self.end:
            self.end = start
        else:
            self._insert(start, size)

    def _padded(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def _insert(self, start: int, size: int) -> None:
        self.holes.append((start, size))
        self.holes.sort()
