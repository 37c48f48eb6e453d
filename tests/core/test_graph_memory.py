"""The buffer that holds a graph."""

from __future__ import annotations

from ggufcluster.core.graph_memory import F16, Graph, buffer_bytes


def size(graph: Graph, *, alignment: int = 32) -> int:
    """Return the buffer of a graph."""
    return buffer_bytes(graph, alignment=alignment)


def test_what_is_read_no_more_makes_room() -> None:
    """In a chain only two results live at once, however long it is."""
    graph = Graph()
    node = graph.given(32)
    for _ in range(9):
        node = graph.compute(node, shape=(32,))
    assert size(graph) == 2 * 128


def test_an_elementwise_operator_writes_over_its_input() -> None:
    """A chain of them needs the memory of one tensor."""
    graph = Graph()
    node = graph.compute(graph.given(8), shape=(1000,))
    for _ in range(5):
        node = graph.rewrite(node)
    assert size(graph) == 32 + 4000


def test_nothing_writes_over_what_is_still_needed() -> None:
    """With a second reader, and through a view, an elementwise operator needs its own memory."""
    for second in (True, False):
        graph = Graph()
        node = graph.compute(shape=(32,))
        changed = graph.rewrite(node if second else graph.view(node))
        graph.compute(*((changed, node) if second else (changed,)), shape=(8,))
        assert size(graph) == (2 * 128 + 32 if second else 2 * 128)


def test_another_layout_cannot_be_written_over() -> None:
    """Equal sizes are not enough: the shapes must agree."""
    graph = Graph()
    node = graph.compute(shape=(32, 2))
    flat = graph.rewrite(graph.compute(shape=(64,)), node)
    graph.rewrite(flat)
    assert size(graph) == 2 * 256


def test_a_view_keeps_its_tensor() -> None:
    """Memory is given back only when the last view has been read, too."""
    graph = Graph()
    node = graph.compute(shape=(32,))
    view = graph.view(node, 16, 2)
    graph.store(node)
    graph.compute(shape=(32,))
    graph.store(view)
    assert size(graph) == 2 * 128


def test_an_operator_in_place_reads_what_is_beside() -> None:
    """What changes a tensor where it lies keeps its other input until then."""
    graph = Graph()
    node, other = graph.compute(shape=(32,)), graph.compute(shape=(32,))
    graph.compute(shape=(32,))
    graph.view(node, beside=(other,))
    assert size(graph) == 3 * 128


def test_inputs_of_a_pipeline_are_kept() -> None:
    """A kept input is neither given back nor written over; another one is."""
    for kept, expected in ((True, 3 * 128), (False, 2 * 128)):
        graph = Graph()
        node = graph.compute(graph.given(32, kept=kept), shape=(32,))
        graph.compute(node, shape=(32,))
        assert size(graph) == expected


def test_inputs_lie_before_all_others() -> None:
    """Even one that is read late has its place from the start."""
    graph = Graph()
    node = graph.compute(shape=(32,))
    graph.store(graph.compute(node, shape=(32,)))
    graph.store(graph.given(32))
    assert size(graph) == 3 * 128


def test_the_smallest_hole_that_fits_is_taken() -> None:
    """A small tensor goes into the small hole and leaves the big one for a big tensor."""
    graph = Graph()
    big, wall = graph.compute(shape=(64,)), graph.compute(shape=(8,))
    small, end = graph.compute(shape=(16,)), graph.compute(shape=(8,))
    graph.store(big, small)
    first, second = graph.compute(shape=(16,)), graph.compute(shape=(64,))
    graph.store(first, second, wall, end)
    assert size(graph) == 256 + 32 + 64 + 32


def test_neighbouring_holes_become_one() -> None:
    """Three tensors that lay side by side leave room for one of their total size."""
    graph = Graph()
    parts = [graph.compute(shape=(32,)) for _ in range(3)]
    end = graph.compute(shape=(8,))
    for part in (parts[0], parts[2], parts[1]):
        graph.store(part)
    graph.store(graph.compute(shape=(96,)), end)
    assert size(graph) == 3 * 128 + 32


def test_sizes_are_rounded_up() -> None:
    """Every tensor takes whole multiples of the alignment."""
    graph = Graph()
    graph.store(graph.compute(shape=(3,), size=F16), graph.compute(shape=(33,)))
    assert size(graph, alignment=128) == 128 + 256
