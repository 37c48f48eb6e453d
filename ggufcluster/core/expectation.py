"""What to expect of a plan: bounds on speed from bytes per token, operations and links.

A bound is what cannot be exceeded; real runs stay below it. Nothing is counted for the time in
which a message travels, for launches of kernels, or for anything that a bound can do without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.chips import chip_of
from ggufcluster.core.graph_memory import F32
from ggufcluster.core.memory import DeviceKind
from ggufcluster.core.tensor_classes import TensorClass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ggufcluster.core.placement import Share
    from ggufcluster.core.plan import Plan


@dataclass(frozen=True, slots=True)
class Lack:
    """What has no figures: the processor (or GPU) of a host, or the link to it."""

    what: str
    host: str


@dataclass(frozen=True, slots=True)
class Bound:
    """An upper bound.

    Attributes:
        tokens_per_second: No run is faster; None if nothing is known to bound it.
        binds: What takes most of the time, in words.
        unknown: What could not be counted; the bound holds all the same.
    """

    tokens_per_second: float | None
    binds: str
    unknown: tuple[Lack, ...] = ()


@dataclass(frozen=True, slots=True)
class Expectation:
    """Bounds for one request at a time.

    Attributes:
        decode: Tokens that are answered, at the start of the context.
        decode_full: The same at its end.
        prefill: Tokens of a long prompt that are read, at the start of the context.
        bytes_per_token: Weight bytes that one answered token reads over all devices.
    """

    decode: Bound
    decode_full: Bound
    prefill: Bound
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class _Part:
    """Seconds that something takes; None, with what there are no figures of, if unknown."""

    what: str
    seconds: float | None
    lack: Lack


def expect(plan: Plan, *, links: Mapping[str, float]) -> Expectation | None:
    """Bound the speed of a plan; None for one without a placement.

    Args:
        plan: What would run.
        links: Bytes per second to each worker by its name, as far as known.
    """
    if plan.placement is None:
        return None
    shares = plan.placement.shares
    model, load = plan.needs.model, plan.needs.workload
    active = [sum(_active(plan, share)) for share in shares]
    return Expectation(
        decode=_in_turn([*_decode(plan, active, depth=0), *_crossings(plan, links, 1)]),
        decode_full=_in_turn(
            [*_decode(plan, active, depth=load.context), *_crossings(plan, links, 1)]
        ),
        prefill=_overlapped(
            [*_prefill(plan, active), *_crossings(plan, links, load.ubatch)],
            load.ubatch,
            pipelined=plan.needs.pipelined,
        ),
        bytes_per_token=sum(model.active_bytes(n) for n in range(model.layers))
        + model.output_bytes,
    )


def _active(plan: Plan, share: Share) -> Iterator[float]:
    """Yield the weight bytes that one token reads of each layer, and of the output head."""
    model = plan.needs.model
    for layer in range(share.first, share.last + 1):
        yield model.active_bytes(layer)
    if share.last == model.layers - 1:
        yield model.output_bytes


def _decode(plan: Plan, active: list[float], *, depth: int) -> list[_Part]:
    assert plan.placement is not None
    parts = []
    for share, weights in zip(plan.placement.shares, active, strict=True):
        layers = range(share.first, share.last + 1)
        size = weights + sum(_cache_read(plan, layer, depth) for layer in layers)
        parts.append(_memory_part(share, size))
    return parts


def _cache_read(plan: Plan, layer: int, depth: int) -> float:
    """Return the bytes of the cache that one token reads in one layer."""
    model, load = plan.needs.model, plan.needs.workload
    whole = model.kv_token_bytes(layer, kv_type=load.kv_type, index_type=load.index_type)
    network = model.network
    if load.path == "dense" or network is None or layer < network.dense_layers:
        return whole * depth
    # Sparse: all index keys, but only the chosen blocks of keys and values.
    keys = model.kv_token_bytes(layer, kv_type=load.kv_type) - _index_bytes(plan, layer, "f16")
    chosen = min(depth, network.block * network.blocks)
    return keys * chosen + _index_bytes(plan, layer, load.index_type) * depth


def _index_bytes(plan: Plan, layer: int, index_type: str) -> float:
    model = plan.needs.model
    index = model.kv_token_bytes(layer, kv_type="f16", index_type=index_type)
    return index - model.kv_values[layer] * 2.0


def _prefill(plan: Plan, active: list[float]) -> list[_Part]:
    """Return the time of one ubatch on each device: arithmetic or weights, whichever is longer."""
    assert plan.placement is not None
    model, tokens = plan.needs.model, plan.needs.workload.ubatch
    per_byte = _operations_per_byte(plan)
    used = model.experts_used / model.experts if model.experts else 1.0
    touched = 1 - (1 - used) ** tokens  # of the experts, if tokens spread evenly over them
    parts = []
    for share, weights in zip(plan.placement.shares, active, strict=True):
        layers = range(share.first, share.last + 1)
        routed = sum(model.routed_bytes[n] for n in layers) if model.routed_bytes else 0
        read = _memory_part(share, share.weights - routed * (1 - touched))
        chip = chip_of(share.device.chip)
        if chip is None or read.seconds is None:
            parts.append(read)
            continue
        head = model.output_bytes if share.last == model.layers - 1 else 0
        seconds = (weights - head) * per_byte * tokens / chip.operations
        what = f"arithmetic of {share.device.name} on {share.device.host}"
        busy = _Part(what, seconds, read.lack)
        parts.append(max(read, busy, key=lambda part: part.seconds or 0.0))
    return parts


def _operations_per_byte(plan: Plan) -> float:
    """Return the operations of one token for each active byte of the layers."""
    model = plan.needs.model
    inside = [
        group
        for group in model.quantisation
        if group.tensor_class not in {TensorClass.EMBEDDING, TensorClass.OUTPUT}
    ]
    share = model.experts_used / model.experts if model.experts else 1.0
    weights = sum(
        use.weights * (share if group.tensor_class is TensorClass.EXPERTS else 1.0)
        for group in inside
        for use in group.uses
    )
    size = sum(model.active_bytes(layer) for layer in range(model.layers))
    return 2 * weights / size if size else 0.0


def _memory_part(share: Share, size: float) -> _Part:
    chip = chip_of(share.device.chip)
    what = f"memory of {share.device.name} on {share.device.host}"
    lack = Lack(share.device.chip or "processor", share.device.host)
    return _Part(what, size / chip.bandwidth if chip else None, lack)


def _crossings(plan: Plan, links: Mapping[str, float], tokens: int) -> list[_Part]:
    """Return the time on each worker's link: what goes in and out passes through the head."""
    assert plan.placement is not None
    model, shares = plan.needs.model, plan.placement.shares
    network = model.network
    if network is None:
        return []
    parts = []
    for share in shares:
        if share.device.kind in {DeviceKind.HEAD_CPU, DeviceKind.HEAD_GPU}:
            continue
        if share.device.with_head:
            continue  # a worker beside the head has no link
        last = share is shares[-1]
        values = network.width * tokens + (network.vocabulary if last else network.width * tokens)
        rate = links.get(share.device.host, 0.0)
        seconds = values * F32 / rate if rate else None
        host = share.device.host
        parts.append(_Part(f"the link to {host}", seconds, Lack("link", host)))
    return parts


def _in_turn(parts: list[_Part]) -> Bound:
    """Bound what is done one after the other for each token."""
    known = [part for part in parts if part.seconds is not None]
    total = sum(part.seconds or 0.0 for part in known)
    return _bound(parts, known, 1 / total if total else None)


def _overlapped(parts: list[_Part], tokens: int, *, pipelined: bool) -> Bound:
    """Bound what devices do at the same time on different ubatches."""
    known = [part for part in parts if part.seconds is not None]
    seconds = [part.seconds or 0.0 for part in known]
    total = max(seconds, default=0.0) if pipelined else sum(seconds)
    return _bound(parts, known, tokens / total if total else None)


def _bound(parts: list[_Part], known: list[_Part], rate: float | None) -> Bound:
    unknown = tuple(dict.fromkeys(part.lack for part in parts if part.seconds is None))
    most = max(known, key=lambda part: part.seconds or 0.0, default=None)
    return Bound(rate, most.what if most and rate else "nothing that is known", unknown)
