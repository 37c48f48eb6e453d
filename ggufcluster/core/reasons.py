"""Say in words why a plan is what it is."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ggufcluster.core.family import family_of
from ggufcluster.core.memory import DeviceKind
from ggufcluster.core.units import size_text
from ggufcluster.core.wish import MAX_CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.placement import Share
    from ggufcluster.core.plan import Plan


def reasons(plan: Plan) -> tuple[str, ...]:
    """Return one sentence for each choice, the biggest first."""
    if plan.placement is None:
        return ()
    found = [*_context(plan), *_starts(plan), *_order(plan), *_cache(plan), *_path(plan)]
    return (*found, *_headroom(plan), *_estimate(plan))


def _context(plan: Plan) -> Iterator[str]:
    wished, context = plan.context_wish, plan.spec.context
    train = plan.needs.model.train_context
    if wished == MAX_CONTEXT:
        limit = "the model was made for" if context == train else "fits, in steps of 256"
        yield f"context {context:,}: the most that {limit}"
    elif wished is None:
        yield f"context {context:,}: the largest usual one that fits; --ctx max takes all there is"
    elif isinstance(wished, int) and wished > context:
        yield f"context {context:,} instead of {wished:,}: the model was made for no more"


def _starts(plan: Plan) -> Iterator[str]:
    assert plan.placement is not None
    shares = plan.placement.shares
    for before, share in pairwise(shares):
        yield (
            f"layer {share.first} starts on {share.device.host} ({share.device.name}) because"
            f" {_layers(before)} {_filled(before)} of"
            f" {before.device.host} and {_layers(share)} {_filled(share)} of it"
        )


def _layers(share: Share) -> str:
    if share.first == share.last:
        return f"layer {share.first} fills"
    return f"layers {share.first}-{share.last} fill"


def _filled(share: Share) -> str:
    usable = share.device.usable
    return f"{100 * share.memory.total / usable:.0f} %" if usable else "all"


def _order(plan: Plan) -> Iterator[str]:
    assert plan.placement is not None
    last = plan.placement.shares[-1].device
    if len(plan.placement.shares) > 1 and last.kind is DeviceKind.HEAD_GPU:
        yield f"{last.name} comes last: the output head is there, so logits stay on the head"


def _cache(plan: Plan) -> Iterator[str]:
    load = plan.needs.workload
    if load.kv_type == family_of(plan.needs.model.architecture).kv_type:
        yield f"KV cache {load.kv_type}: what this family of models takes unless told otherwise"
    if load.parallel > 1:
        total = load.cells * load.parallel
        yield f"{load.parallel} slots of {load.context:,} tokens: {total:,} cells in all"


def _path(plan: Plan) -> Iterator[str]:
    model, path = plan.needs.model, plan.needs.workload.path
    if not plan.sparse:
        if family_of(model.architecture).sparse and not model.has_indexer:
            yield "dense attention: the file has no indexer tensors"
        return
    if path == "native":
        yield "sparse attention on our kernels: every device is a GPU and the shapes fit them"
        return
    cpus = [device.host for device in plan.devices if not device.gpu]
    why = f"{cpus[0]} computes on its CPU" if cpus else "it was asked for, or shapes need it"
    yield f"sparse attention on generic operators: {why}; their masks grow the compute buffers"


def _headroom(plan: Plan) -> Iterator[str]:
    kept = max(plan.devices, key=lambda device: device.headroom, default=None)
    if kept is not None:
        yield (
            f"{size_text(kept.headroom)} stay free on {kept.host}: a twelfth of the memory, at"
            " most 9 GiB, because a machine that runs out may hang as a whole"
        )


def _estimate(plan: Plan) -> Iterator[str]:
    if not plan.needs.exact:
        yield (
            f"compute buffers of {plan.needs.model.architecture} are an estimate with a quarter"
            " on top; only those of minimax-m3 were checked against the engine"
        )
