"""Decide how many layers each device gets, or refuse with numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from ggufcluster.core.units import GIB
from ggufcluster.errors import ConfigError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ggufcluster.core.model import ModelFacts

# A GB10 that runs out of memory hangs as a whole instead of failing, so real room is kept free:
# the smaller of a twelfth of the device and this, plus the compute buffer.
_HEADROOM_SHARE = 12
_HEADROOM_MOST = 8 * GIB


@dataclass(frozen=True, slots=True)
class Device:
    """One device that can hold layers.

    Attributes:
        name: llama.cpp's name of it: RPC0, CUDA0.
        host: Where it is, for people.
        free: Free memory in bytes.
        total: All of its memory in bytes.
    """

    name: str
    host: str
    free: int
    total: int

    @property
    def usable(self) -> int:
        """Memory that may be filled, in bytes."""
        return max(0, self.free - min(self.total // _HEADROOM_SHARE, _HEADROOM_MOST))


@dataclass(frozen=True, slots=True)
class Share:
    """What one device gets.

    Attributes:
        device: The device.
        first: Index of its first layer.
        layers: Number of its layers.
        bytes: Weights and KV cache that go there.
        weights: The weights among them.
    """

    device: Device
    first: int
    layers: int
    bytes: int
    weights: int

    @property
    def last(self) -> int:
        """Index of its last layer."""
        return self.first + self.layers - 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Layers on devices, in the order of the pipeline, and the context that fits."""

    shares: tuple[Share, ...]
    context: int


def place(
    model: ModelFacts,
    devices: Sequence[Device],
    *,
    contexts: Sequence[int],
    kv_type: str,
    parallel: int,
    compute_bytes: Callable[[int], int],
) -> Placement:
    """Split the layers over the devices by their usable memory.

    Every device gets at least one layer; the last also holds the output head. The first context
    of `contexts` that fits is taken, cut to what the model was made for.

    Args:
        model: Sizes of the model.
        devices: In the order of the pipeline.
        contexts: Tokens per slot, in order of preference.
        kv_type: Type of the KV cache.
        parallel: Number of slots, each with a context of its own.
        compute_bytes: Working memory of each device for that many tokens of context.

    Raises:
        ConfigError: There are more devices than layers.
        PlacementError: Nothing fits.
    """
    check_count(model, len(devices))
    wanted = sorted({min(context, model.train_context) for context in contexts}, reverse=True)
    for context in wanted:
        costs = _costs(model, tokens=context * parallel, kv_type=kv_type)
        counts = _split(costs, model.output_bytes, devices, compute_bytes(context * parallel))
        if counts is not None:
            return Placement(tuple(_shares(model, costs, devices, counts)), context)
    least = sum(_costs(model, tokens=wanted[-1] * parallel, kv_type=kv_type))
    raise PlacementError(
        f"{model.name} does not fit with a context of {wanted[-1]:,} tokens",
        need=least + model.output_bytes + compute_bytes(wanted[-1] * parallel) * len(devices),
        have=sum(device.usable for device in devices),
    )


def check_count(model: ModelFacts, devices: int) -> None:
    """Refuse more devices than layers.

    Raises:
        ConfigError: There are.
    """
    if devices > model.layers:
        reason = f"{devices} devices for the {model.layers} layers of {model.name}; name fewer"
        raise ConfigError(reason, source="workers")


def _costs(model: ModelFacts, *, tokens: int, kv_type: str) -> list[int]:
    return [
        weight + model.kv_bytes(layer, context=tokens, kv_type=kv_type)
        for layer, weight in enumerate(model.layer_bytes)
    ]


def _split(
    costs: list[int], output_bytes: int, devices: Sequence[Device], compute_bytes: int
) -> list[int] | None:
    rooms = [device.usable - compute_bytes for device in devices]
    rooms[-1] -= output_bytes
    if min(rooms) <= 0:
        return None
    # Even shares waste a part of a layer on each device; where that is too much, fill them up.
    for counts in (_cut(costs, _targets(costs, rooms)), _fill(costs, rooms)):
        if _fits(costs, rooms, counts):
            return counts
    return None


def _fits(costs: list[int], rooms: list[int], counts: list[int]) -> bool:
    ends = list(accumulate(counts))
    return all(
        sum(costs[end - count : end]) <= room
        for count, end, room in zip(counts, ends, rooms, strict=True)
    )


def _targets(costs: list[int], rooms: list[int]) -> list[float]:
    """Return, for each cut between devices, the running cost at which it should lie."""
    total, room = sum(costs), sum(rooms)
    cuts, filled = [], 0.0
    for part in rooms[:-1]:
        filled += total * part / room
        cuts.append(filled)
    return cuts


def _cut(costs: list[int], targets: list[float]) -> list[int]:
    counts, start, running = [], 0, 0.0
    for index, target in enumerate(targets):
        devices_left = len(targets) - index
        end = start
        # A layer belongs left of the cut if most of it does; one is kept for each later device.
        while end < len(costs) - devices_left and (
            end == start or running + costs[end] / 2 <= target
        ):
            running += costs[end]
            end += 1
        counts.append(end - start)
        start = end
    return [*counts, len(costs) - start]


def _fill(costs: list[int], rooms: list[int]) -> list[int]:
    """Give each device all that it can hold, but leave one layer for each later one."""
    counts, start = [], 0
    for index, room in enumerate(rooms[:-1], 1):
        limit = len(costs) - (len(rooms) - index)
        end, size = start + 1, costs[start]
        while end < limit and size + costs[end] <= room:
            size += costs[end]
            end += 1
        counts.append(end - start)
        start = end
    return [*counts, len(costs) - start]


def _shares(
    model: ModelFacts, costs: list[int], devices: Sequence[Device], counts: list[int]
) -> list[Share]:
    shares, first = [], 0
    for device, count in zip(devices, counts, strict=True):
        layers = slice(first, first + count)
        head = model.output_bytes if layers.stop == model.layers else 0
        size, weights = sum(costs[layers]) + head, sum(model.layer_bytes[layers]) + head
        shares.append(Share(device, first, count, size, weights))
        first += count
    return shares
