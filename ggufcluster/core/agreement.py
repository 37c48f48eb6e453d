"""Compare the memory that was planned with what llama-server reports after its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.memory import DeviceKind
from ggufcluster.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.placement import Share
    from ggufcluster.core.plan import Plan
    from ggufcluster.core.server_log import BufferUse, ServerReport

# Reports are rounded to hundredths of a MiB, and one number may be the sum of three.
_ROUNDING = 0.02 * MIB


@dataclass(frozen=True, slots=True)
class Agreement:
    """One part of the memory of one device, in bytes.

    Attributes:
        device: llama.cpp's name of the device.
        host: Where it is.
        part: ``weights``, ``kv_cache``, ``compute`` or ``outputs``.
        planned: What the plan says is reserved at the start.
        reported: What llama-server said.
    """

    device: str
    host: str
    part: str
    planned: int
    reported: int

    @property
    def deviation(self) -> float:
        """How far the report lies off the plan, as a part of the report; rounding counts not."""
        off = max(0.0, abs(self.planned - self.reported) - _ROUNDING)
        return off / max(self.reported, self.planned, 1)


def agreement(plan: Plan, report: ServerReport) -> tuple[Agreement, ...]:
    """Return each part of each device that is reported, the head's own last.

    A plan without placement has none.
    """
    if plan.placement is None:
        return ()
    shares = plan.placement.shares
    found = [one for share in shares for one in _device(plan, share, report)]
    if all(share.device.kind is not DeviceKind.HEAD_CPU for share in shares):
        found += _head(plan, report)
    return tuple(found)


def _device(plan: Plan, share: Share, report: ServerReport) -> Iterator[Agreement]:
    device = share.device
    stage = plan.needs.at_start().stage(share.first, share.layers, device.kind)
    weights, head = stage.weights, plan.needs.head()
    if device.kind is DeviceKind.HEAD_CPU:
        weights += head.embedding
        use = _host_use(report)
    else:
        name = device.buffer or device.name
        use = report.buffers.get(name)
    planned = {"weights": weights, "kv_cache": stage.kv_cache, "compute": stage.compute}
    return _parts(device.name, device.host, planned, use)


def _head(plan: Plan, report: ServerReport) -> Iterator[Agreement]:
    head = plan.needs.at_start().head()
    planned = {"weights": head.embedding, "compute": head.inputs, "outputs": head.outputs}
    return _parts("CPU", "head", planned, _host_use(report))


def _host_use(report: ServerReport) -> BufferUse | None:
    """Add up the buffers in the head's own memory: CPU, CPU_Mapped, CUDA_Host."""
    names = [name for name in report.buffers if name.startswith("CPU") or name.endswith("_Host")]
    uses = [report.buffers[name] for name in names]
    if not uses:
        return None
    total = uses[0]
    for use in uses[1:]:
        total = type(total)(
            total.weights + use.weights,
            total.kv_cache + use.kv_cache,
            total.compute + use.compute,
            total.outputs + use.outputs,
        )
    return total


def _parts(
    device: str, host: str, planned: dict[str, int], use: BufferUse | None
) -> Iterator[Agreement]:
    if use is None:
        return  # a log without such lines says nothing against the plan
    for part, size in planned.items():
        yield Agreement(device, host, part, size, round(getattr(use, part) * MIB))
