"""From facts to a launch spec: purely decided, so that `plan`, a dry run and `up` agree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.family import family_of
from ggufcluster.core.launch import DeviceLayers, LaunchSpec
from ggufcluster.core.memory import CELLS, DeviceKind, Requirements, Workload
from ggufcluster.core.placement import MOST_WORKERS, Device, Placement, fits, place
from ggufcluster.core.wish import MAX_CONTEXT
from ggufcluster.errors import ConfigError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.core.family import Family
    from ggufcluster.core.model import ModelFacts
    from ggufcluster.core.network import NetworkShape
    from ggufcluster.core.wish import Wish

# What our kernels of sparse attention are made for (ggml_msa_has_kernel in the overlay).
_KERNEL_HEAD, _KERNEL_BLOCK, _KERNEL_BLOCKS, _KERNEL_GROUP = 128, 128, 16, 16
_KERNEL_CONTEXT = 16_384 * _KERNEL_BLOCK
_KERNEL_TYPES = frozenset({"f16", "bf16", "q8_0", "q4_0"})


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run.

    Attributes:
        spec: The launch spec.
        placement: Layers on devices; None if nothing is known of the head that computes alone.
        sparse: Whether sparse attention must be on.
        needs: What the placement was made by.
        devices: The devices in pipeline order.
        head: The head's own memory, None if unknown.
        context_wish: What was asked for: tokens, ``max``, or None.
    """

    spec: LaunchSpec
    placement: Placement | None
    sparse: bool
    needs: Requirements
    devices: tuple[Device, ...]
    head: Device | None
    context_wish: int | str | None


def make_plan(
    wish: Wish,
    model: ModelFacts,
    path: PurePosixPath,
    *,
    devices: Sequence[Device],
    endpoints: Sequence[str],
    head: Device | None = None,
) -> Plan:
    """Merge the wish with the defaults of the model family and place the layers.

    Args:
        wish: What was asked for.
        model: Facts of the model.
        path: Its first shard on the head.
        devices: In pipeline order; none means that everything runs on the head's CPU.
        endpoints: ``address:port`` of each worker in order.
        head: The head's own memory, if known: it holds the embedding and the inputs.

    Raises:
        PlacementError: The model does not fit.
        ConfigError: An option after ``--`` contradicts the plan, or there are too many workers.
    """
    if len(endpoints) > MOST_WORKERS:
        reason = f"{len(endpoints)} workers; llama.cpp takes at most {MOST_WORKERS}"
        raise ConfigError(reason, source="workers.hosts")
    family = family_of(model.architecture)
    has_msa = family.sparse and model.has_indexer
    used = tuple(devices) or ((head,) if head else ())
    search = _Search(wish, model, family, used, head, has_msa=has_msa)
    context, placement = search.best()
    needs = search.needs(context)
    spec = LaunchSpec(
        model=path,
        alias=model.name,
        endpoints=tuple(endpoints),
        split=_split(placement if devices else None),
        context=context,
        parallel=wish.parallel,
        kv_type=needs.workload.kv_type,
        ubatch=needs.workload.ubatch,
        host=wish.host,
        port=wish.port,
        msa=_msa_path(wish.msa, used) if has_msa else None,
        index_type=wish.index_type if has_msa else None,
        sampling=family.sampling,
        template=PurePosixPath(wish.template) if wish.template else None,
        api_key_file=PurePosixPath(wish.api_key_file) if wish.api_key_file else None,
        extra=wish.extra,
    )
    sparse = has_msa and spec.msa != "dense"
    return Plan(spec, placement, sparse, needs, used, head, wish.context)


def largest_context(
    wish: Wish,
    model: ModelFacts,
    *,
    devices: Sequence[Device],
    head: Device | None,
    kv_type: str,
) -> int:
    """Return the most tokens a slot that fit with a type of cache; 0 if not even few do."""
    family = family_of(model.architecture)
    has_msa = family.sparse and model.has_indexer
    search = _Search(wish, model, family, tuple(devices), head, has_msa=has_msa, kv_type=kv_type)
    return search.largest()


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for a context that fits."""

    wish: Wish
    model: ModelFacts
    family: Family
    devices: tuple[Device, ...]
    head: Device | None
    has_msa: bool
    kv_type: str | None = None

    def best(self) -> tuple[int, Placement | None]:
        """Return the context that is wanted, or the best that fits, and its placement.

        Raises:
            PlacementError: None does.
        """
        wanted = self._wanted()
        if not self.devices:
            return wanted[-1], None
        if self.wish.context == MAX_CONTEXT:
            largest = self.largest()
            wanted = [largest] if largest else wanted
        for context in wanted[:-1]:
            placement = self._try(context)
            if placement is not None:
                return context, placement
        return wanted[-1], self._place(wanted[-1])

    def needs(self, context: int) -> Requirements:
        """Return what the model needs with so many tokens a slot."""
        wish, family = self.wish, self.family
        kv_type = self.kv_type or wish.kv_type or family.kv_type
        path = "dense"
        if self.has_msa:
            path = _expected_path(wish.msa, self.devices, self.model.network, kv_type, context)
        workload = Workload(
            context=context,
            parallel=wish.parallel,
            ubatch=min(wish.ubatch or family.ubatch, context),
            kv_type=kv_type,
            path=path,
            index_type=wish.index_type,
        )
        return Requirements(self.model, workload, pipelined=len(self.devices) > 1)

    def largest(self) -> int:
        """Return the largest context that fits, in whole steps of the cache; 0 if none does."""
        low, high = 0, max(1, self.model.train_context // CELLS)
        while low < high:
            middle = (low + high + 1) // 2
            fitting = fits(
                self.needs(middle * CELLS), self.model.layers, self.devices, head=self.head
            )
            low, high = (middle, high) if fitting else (low, middle - 1)
        return min(low * CELLS, self.model.train_context) if low else 0

    def _wanted(self) -> list[int]:
        context = self.wish.context
        contexts = (context,) if isinstance(context, int) else self.family.contexts
        return sorted({min(one, self.model.train_context) for one in contexts}, reverse=True)

    def _try(self, context: int) -> Placement | None:
        try:
            return self._place(context)
        except PlacementError:
            return None

    def _place(self, context: int) -> Placement:
        slots = f" in each of {self.wish.parallel} slots" if self.wish.parallel > 1 else ""
        return place(
            self.needs(context),
            self.model.layers,
            self.devices,
            name=self.model.name,
            how=f"with a context of {context:,} tokens{slots}",
            head=self.head,
        )


def _msa_path(wanted: str, devices: Sequence[Device]) -> str:
    # Over RPC llama.cpp takes every device for a GPU and would run the plain CPU reference there.
    on_gpus = bool(devices) and all(device.gpu for device in devices)
    return "generic" if wanted == "auto" and not on_gpus else wanted


def _expected_path(
    wanted: str,
    devices: Sequence[Device],
    network: NetworkShape | None,
    kv_type: str,
    context: int,
) -> str:
    """Return the path that llama-server will take."""
    path = _msa_path(wanted, devices)
    if path != "auto":
        return path
    made_for = network is not None and (
        network.key_size == network.value_size == network.index_size == _KERNEL_HEAD
        and network.block == _KERNEL_BLOCK
        and network.blocks <= _KERNEL_BLOCKS
        and context <= _KERNEL_CONTEXT
        and network.query_heads == _KERNEL_GROUP * network.key_heads
    )
    return "native" if made_for and kv_type in _KERNEL_TYPES else "generic"


def _split(placement: Placement | None) -> tuple[DeviceLayers, ...]:
    if placement is None:
        return ()
    return tuple(
        DeviceLayers(share.device.name, share.layers)
        for share in placement.shares
        if share.device.kind is not DeviceKind.HEAD_CPU
    )
