"""What a part of a model needs on a device: weights, KV cache, compute buffer.

The numbers are those that llama.cpp reports after a start. For MiniMax-M3 they follow from its
graph (`minimax_graph`); for other families the same graph without sparse layers is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from ggufcluster.core.graph_memory import F32, buffer_bytes
from ggufcluster.core.kv_cache import INDEX_TYPE
from ggufcluster.core.minimax_graph import Batch, Stage, input_bytes, stage_graph
from ggufcluster.core.model import M3_ARCHITECTURE
from ggufcluster.core.units import MIB

if TYPE_CHECKING:
    from ggufcluster.core.model import ModelFacts
    from ggufcluster.core.network import NetworkShape

# llama.cpp pads the cache of each sequence, and counts positions in the same steps.
CELLS = 256

# So many micro-batches are under way in a pipeline (GGML_SCHED_MAX_COPIES).
_PIPELINE_COPIES = 4
_CPU_ALIGNMENT, _GPU_ALIGNMENT = 32, 128

# Layers of one kind follow each other in the same memory, so a few of them tell the peak.
_TELLING_LAYERS = 4

# Other families than MiniMax-M3: a margin on the estimate, and what is taken without any shapes.
_ESTIMATE_NUMERATOR, _ESTIMATE_DENOMINATOR = 5, 4
_BLIND_FLOOR = 256 * MIB
_BLIND_CELL_BYTES = 8


class DeviceKind(Enum):
    """Where and on what layers are computed."""

    HEAD_CPU = "the head's CPU"
    HEAD_GPU = "a GPU of the head"
    FAR_CPU = "a worker's CPU"
    FAR_GPU = "a GPU of a worker"

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self in {DeviceKind.HEAD_GPU, DeviceKind.FAR_GPU}


@dataclass(frozen=True, slots=True)
class Workload:
    """How a model is to run, as far as memory depends on it.

    Attributes:
        context: Tokens per slot.
        parallel: Number of slots.
        ubatch: Tokens per ubatch.
        kv_type: Type of keys and values in the cache.
        path: How sparse layers attend: ``native``, ``generic`` or ``dense``.
        index_type: Type of the index keys.
    """

    context: int
    parallel: int
    ubatch: int
    kv_type: str
    path: str
    index_type: str = INDEX_TYPE

    @property
    def cells(self) -> int:
        """Cells of one slot's KV cache."""
        total = -(-self.context * self.parallel // CELLS) * CELLS
        return -(-total // self.parallel // CELLS) * CELLS


@dataclass(frozen=True, slots=True)
class StageMemory:
    """What one device needs, in bytes.

    Attributes:
        weights: Weights of its layers, and of the output head on the last device.
        kv_cache: Keys, values and index keys of all slots.
        compute: Compute buffer with a full cache.
        head: What the head needs for itself in the same memory.
        loading: What is needed besides the weights while they come in.
    """

    weights: int
    kv_cache: int
    compute: int
    head: int = 0
    loading: int = 0

    @property
    def total(self) -> int:
        """The most that is in use at any time."""
        running = self.kv_cache + self.compute + self.head
        return self.weights + max(running, self.loading)


@dataclass(frozen=True, slots=True)
class HeadMemory:
    """What the head itself needs in its own memory, in bytes.

    Attributes:
        embedding: The token embedding, of which rows are looked up.
        inputs: Inputs of the graph in all their copies, above all the attention mask.
        outputs: Logits.
        loading: Copies of the largest tensor while weights are sent.
    """

    embedding: int
    inputs: int
    outputs: int
    loading: int

    @property
    def running(self) -> int:
        """All that is in use after the load."""
        return self.embedding + self.inputs + self.outputs

    @property
    def total(self) -> int:
        """The most that is in use at any time."""
        return self.embedding + max(self.inputs + self.outputs, self.loading)


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a model needs under a workload, whatever the split; start with `stage` and `head`.

    Attributes:
        model: The model.
        workload: How it runs.
        pipelined: Whether there is more than one device.
        positions: Positions to count with: None for all, else as in the reservation at the start.
    """

    model: ModelFacts
    workload: Workload
    pipelined: bool
    positions: int | None = None

    @property
    def exact(self) -> bool:
        """Whether the compute buffers were checked against the engine's reports."""
        return self.model.architecture == M3_ARCHITECTURE and self.model.network is not None

    def stage(self, first: int, count: int, kind: DeviceKind) -> StageMemory:
        """Return what `count` layers from `first` on need on a device.

        On the head's CPU the compute buffer holds the inputs as well.
        """
        model, layers = self.model, range(first, first + count)
        last = layers.stop == model.layers
        return StageMemory(
            weights=sum(model.layer_bytes[n] for n in layers) + (model.output_bytes if last else 0),
            kv_cache=sum(self._kv_bytes(n) for n in layers),
            compute=self._compute(first, count, kind),
            loading=model.largest_bytes,
        )

    def head(self) -> HeadMemory:
        """Return what the head needs for itself."""
        model, network = self.model, self.model.network
        batch = self._batch(self.workload.ubatch, DeviceKind.FAR_CPU)
        tokens, cells = batch.tokens, self.workload.cells
        inputs = input_bytes(network, batch) if network else tokens * cells * _BLIND_CELL_BYTES
        vocabulary = network.vocabulary if network else 0
        return HeadMemory(
            embedding=model.embedding_bytes,
            inputs=inputs,
            outputs=vocabulary * self.workload.parallel * F32,
            loading=2 * model.largest_bytes,
        )

    def at_start(self) -> Requirements:
        """Return the same as it is reserved, and so reported, before the first token."""
        return replace(self, positions=CELLS)

    def _kv_bytes(self, layer: int) -> int:
        load = self.workload
        return self.model.kv_bytes(
            layer,
            context=load.cells * load.parallel,
            kv_type=load.kv_type,
            index_type=load.index_type,
        )

    def _batch(self, tokens: int, kind: DeviceKind) -> Batch:
        load = self.workload
        tokens = min(tokens, load.context * load.parallel)
        quantised = load.kv_type not in {"f32", "f16", "bf16"}
        return Batch(
            tokens=-(-tokens // load.parallel) * load.parallel,
            streams=load.parallel,
            cells=load.cells,
            positions=self.positions or load.cells,
            outputs=load.parallel,
            path=load.path,
            rotated=quantised,
            half_copies=quantised and kind.is_gpu,
            copies=_PIPELINE_COPIES if self.pipelined else 1,
            local=kind is DeviceKind.HEAD_CPU,
            fused=kind is DeviceKind.HEAD_GPU,
        )

    def _compute(self, first: int, count: int, kind: DeviceKind) -> int:
        network, load = self.model.network, self.workload
        if network is None:
            return _BLIND_FLOOR + _BLIND_CELL_BYTES * load.cells * load.ubatch
        end = first + count
        dense = max(0, min(end, network.dense_layers) - first)
        stage = Stage(
            dense=dense,
            sparse=count - dense,
            is_last=end == self.model.layers,
            masks_here=first <= network.dense_layers < end,
        )
        batches = (self._batch(tokens, kind) for tokens in (load.ubatch, 1))
        alignment = _GPU_ALIGNMENT if kind.is_gpu else _CPU_ALIGNMENT
        size = max(_stage_buffer(network, batch, stage, alignment) for batch in batches)
        return size if self.exact else size * _ESTIMATE_NUMERATOR // _ESTIMATE_DENOMINATOR


def _stage_buffer(network: NetworkShape, batch: Batch, stage: Stage, alignment: int) -> int:
    few = replace(stage, dense=min(stage.dense, _TELLING_LAYERS))
    few = replace(few, sparse=min(stage.sparse, _TELLING_LAYERS))
    size = _buffer(network, batch, few, alignment)
    more = stage.sparse - few.sparse
    if batch.path == "generic" and more:
        # There each sparse layer brings inputs of its own.
        fewer = replace(few, sparse=few.sparse - 1)
        size += more * (size - _buffer(network, batch, fewer, alignment))
    return size


@lru_cache(maxsize=4096)
def _buffer(network: NetworkShape, batch: Batch, stage: Stage, alignment: int) -> int:
    return buffer_bytes(stage_graph(network, batch, stage), alignment=alignment)
