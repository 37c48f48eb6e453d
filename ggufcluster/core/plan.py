"""From facts to a launch spec: purely decided, so that a dry run shows the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.family import family_of
from ggufcluster.core.launch import DeviceLayers, LaunchSpec
from ggufcluster.core.placement import Placement, place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.core.model import ModelFacts
    from ggufcluster.core.placement import Device
    from ggufcluster.core.wish import Wish


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run: the launch spec, the placement behind it, and whether MSA must be on."""

    spec: LaunchSpec
    placement: Placement | None
    sparse: bool


def make_plan(
    wish: Wish,
    model: ModelFacts,
    path: PurePosixPath,
    *,
    devices: Sequence[Device],
    endpoints: Sequence[str],
) -> Plan:
    """Merge the wish with the defaults of the model family and place the layers.

    Args:
        wish: What was asked for.
        model: Facts of the model.
        path: Its first shard on the head.
        devices: In pipeline order; none means that everything runs on the head's CPU.
        endpoints: ``address:port`` of each worker in order.

    Raises:
        PlacementError: The model does not fit.
        ConfigError: An option after ``--`` contradicts the plan.
    """
    family = family_of(model.architecture)
    kv_type = wish.kv_type or family.kv_type
    contexts = (wish.context,) if wish.context else family.contexts
    ubatch = wish.ubatch or family.ubatch
    placement = None
    if devices:
        placement = place(
            model,
            devices,
            contexts=contexts,
            kv_type=kv_type,
            parallel=wish.parallel,
            compute_bytes=lambda tokens: family.compute_bytes(tokens, ubatch),
        )
    context = placement.context if placement else min(contexts[-1], model.train_context)
    spec = LaunchSpec(
        model=path,
        alias=model.name,
        endpoints=tuple(endpoints),
        split=_split(placement),
        context=context,
        parallel=wish.parallel,
        kv_type=kv_type,
        ubatch=min(ubatch, context),
        host=wish.host,
        port=wish.port,
        sampling=family.sampling,
        template=PurePosixPath(wish.template) if wish.template else None,
        api_key_file=PurePosixPath(wish.api_key_file) if wish.api_key_file else None,
        extra=wish.extra,
    )
    return Plan(spec, placement, sparse=family.sparse and model.has_indexer)


def _split(placement: Placement | None) -> tuple[DeviceLayers, ...]:
    if placement is None:
        return ()
    return tuple(DeviceLayers(share.device.name, share.layers) for share in placement.shares)
