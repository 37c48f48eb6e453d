"""Decide how many layers each device gets, or refuse with numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol

from ggufcluster.core.memory import DeviceKind, HeadMemory, StageMemory
from ggufcluster.core.units import GIB, size_text
from ggufcluster.errors import ConfigError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A GB10 that runs out of memory hangs as a whole instead of failing: with less than about this
# free, operators of four saw engines and hosts die. Smaller devices keep a twelfth.
_HEADROOM_SHARE = 12
_HEADROOM_MOST = 9 * GIB

# llama.cpp takes no more RPC servers (GGML_RPC_MAX_SERVERS).
MOST_WORKERS = 16

# How close to the best balance a split is sought.
_FINE = 2**-24


def headroom_of(total: int) -> int:
    """Return how much of a memory is kept free, in bytes; one that runs out may hang its host."""
    return min(total // _HEADROOM_SHARE, _HEADROOM_MOST)


@dataclass(frozen=True, slots=True)
class Device:
    """One device that can hold layers.

    Attributes:
        name: llama.cpp's name of it: RPC0, CUDA0, CPU.
        host: Where it is, for people.
        free: Free memory in bytes.
        total: All of its memory in bytes.
        gpu: Whether it is a GPU and not a CPU.
        chip: What the driver calls it; empty if unknown.
        with_head: Whether the head's own buffers lie in the same memory.
        buffer: How llama-server's log names its buffers; empty if as the device.
    """

    name: str
    host: str
    free: int
    total: int
    gpu: bool = True
    chip: str = ""
    with_head: bool = False
    buffer: str = ""

    @property
    def headroom(self) -> int:
        """Memory that is kept free, in bytes."""
        return headroom_of(self.total)

    @property
    def usable(self) -> int:
        """Memory that may be filled, in bytes."""
        return max(0, self.free - self.headroom)

    @property
    def kind(self) -> DeviceKind:
        """Where and on what it computes, by its name."""
        if self.name == "CPU":
            return DeviceKind.HEAD_CPU
        if not self.name.startswith("RPC"):
            return DeviceKind.HEAD_GPU
        return DeviceKind.FAR_GPU if self.gpu else DeviceKind.FAR_CPU


@dataclass(frozen=True, slots=True)
class Share:
    """What one device gets.

    Attributes:
        device: The device.
        first: Index of its first layer.
        layers: Number of its layers.
        memory: What they need there.
    """

    device: Device
    first: int
    layers: int
    memory: StageMemory

    @property
    def last(self) -> int:
        """Index of its last layer."""
        return self.first + self.layers - 1

    @property
    def bytes(self) -> int:
        """Weights and KV cache, in bytes."""
        return self.memory.weights + self.memory.kv_cache

    @property
    def weights(self) -> int:
        """The weights among them, in bytes."""
        return self.memory.weights


@dataclass(frozen=True, slots=True)
class Placement:
    """Layers on devices, in the order of the pipeline, and what the head needs beside them."""

    shares: tuple[Share, ...]
    head: HeadMemory


class Needs(Protocol):
    """What layers need; `Requirements` is the real one."""

    def stage(self, first: int, count: int, kind: DeviceKind) -> StageMemory:
        """Return what `count` layers from `first` on need on a device."""

    def head(self) -> HeadMemory:
        """Return what the head needs for itself."""


def place(
    needs: Needs,
    layers: int,
    devices: Sequence[Device],
    *,
    name: str,
    how: str = "",
    head: Device | None = None,
) -> Placement:
    """Spread weights and cache so that the fullest device is as little filled as can be.

    Every device gets at least one layer; the last also holds the output head.

    Args:
        needs: What the layers need.
        layers: Number of layers.
        devices: In the order of the pipeline.
        name: Name of the model, for errors.
        how: How it is to run, in words, for errors.
        head: The head's own memory, None if unknown; not looked at where a device shares it.

    Raises:
        ConfigError: There are more devices than layers.
        PlacementError: It does not fit; need and have are bytes.
    """
    check_count(name, layers, len(devices))
    split = _Split(needs, layers, devices)
    what = f"{name} does not fit {how}".rstrip()
    _check_head(split, head, what=what)
    counts = split.balanced()
    if counts is None:
        raise split.refusal(what)
    return Placement(tuple(split.shares(counts)), needs.head())


def fits(needs: Needs, layers: int, devices: Sequence[Device], *, head: Device | None) -> bool:
    """Say whether there is a placement, which is quicker than to find the best one."""
    split = _Split(needs, layers, devices)
    alone = head is not None and not split.with_head
    if head is not None and alone and needs.head().total > head.usable:
        return False
    return split.filled(1.0) is not None


def check_count(name: str, layers: int, devices: int) -> None:
    """Refuse more devices than layers.

    Raises:
        ConfigError: There are.
    """
    if devices > layers:
        reason = f"{devices} devices for the {layers} layers of {name}; name fewer"
        raise ConfigError(reason, source="workers.hosts")


def _check_head(split: _Split, head: Device | None, *, what: str) -> None:
    if head is None or split.with_head:
        return
    need = split.needs.head().total
    if need > head.usable:
        reason = f"{what}: {head.host} itself holds the embedding and the inputs"
        raise PlacementError(reason, need=need, have=head.usable)


@dataclass(slots=True)
class _Split:
    """The search for a split."""

    needs: Needs
    layers: int
    devices: Sequence[Device]
    _sizes: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def with_head(self) -> int:
        """Count the devices in whose memory the head's own buffers lie."""
        return sum(device.with_head for device in self.devices)

    def memory(self, index: int, first: int, count: int) -> StageMemory:
        """Return what so many layers need on a device, with its share of the head's buffers."""
        device = self.devices[index]
        stage = self.needs.stage(first, count, device.kind)
        if not device.with_head:
            return stage
        head = self.needs.head()
        running, loading = head.running, stage.loading + head.embedding + head.loading
        if device.kind is DeviceKind.HEAD_CPU:
            # There the inputs are part of the compute buffer, and nothing is sent.
            running, loading = running - head.inputs, head.embedding
        return replace(stage, head=running // self.with_head, loading=loading // self.with_head)

    def balanced(self) -> list[int] | None:
        """Return the split whose fullest device is filled least by weights and cache."""
        best = self.filled(1.0)
        low, high = 0.0, 1.0
        while best is not None and high - low > _FINE:
            middle = (low + high) / 2
            found = self.filled(middle)
            low, high, best = (low, middle, found) if found else (middle, high, best)
        return best

    def filled(self, part: float) -> list[int] | None:
        """Fill each device to a part of its room with weights and cache, if all fits so.

        One layer is left for each later device.
        """
        counts: list[int] = []
        start = 0
        for index in range(len(self.devices)):
            later = len(self.devices) - 1 - index
            most = self.layers - start - later
            count = self._most(index, start, most, part) if later else most
            if not self._holds(index, start, count, part):
                return None
            counts.append(count)
            start += count
        return counts

    def shares(self, counts: Sequence[int]) -> list[Share]:
        """Return the parts of a split."""
        ends = accumulate(counts)
        return [
            Share(device, end - count, count, self.memory(index, end - count, count))
            for index, (device, count, end) in enumerate(
                zip(self.devices, counts, ends, strict=True)
            )
        ]

    def refusal(self, what: str) -> PlacementError:
        """Say what is missing, and on which device."""
        number = len(self.devices)
        ends = [self.layers * (index + 1) // number for index in range(number)]
        shares = self.shares([b - a for a, b in pairwise([0, *ends])])
        need = sum(share.memory.total for share in shares)
        have = sum(device.usable for device in self.devices)
        if need <= have:
            tight = max(shares, key=lambda share: share.memory.total - share.device.usable)
            what += (
                f": {tight.device.name} on {tight.device.host} would need"
                f" {size_text(tight.memory.total)} for {tight.layers} layers and offers"
                f" {size_text(tight.device.usable)}"
            )
        return PlacementError(what, need=need, have=have)

    def _most(self, index: int, start: int, most: int, part: float) -> int:
        """Return how many layers a device can hold at most, at least one."""
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            held = self._holds(index, start, middle, part)
            low, high = (middle, high) if held else (low, middle - 1)
        return low

    def _holds(self, index: int, start: int, count: int, part: float) -> bool:
        """Say whether all fits, and weights and cache take no more than a part of the room.

        They are what a device works on; the rest hardly depends on how many layers it has.
        """
        key = (index, start, count)
        if key not in self._sizes:
            memory = self.memory(*key)
            self._sizes[key] = (memory.weights + memory.kv_cache, memory.total)
        work, total = self._sizes[key]
        usable = self.devices[index].usable
        return work <= part * usable and total <= usable
