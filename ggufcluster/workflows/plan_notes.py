"""Say what was planned, and after the start whether it came out so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.core.agreement import agreement
from ggufcluster.core.units import size_text
from ggufcluster.workflows.events import Finished, Note, Started, Warned, Workflow

if TYPE_CHECKING:
    from ggufcluster.core.plan import Plan
    from ggufcluster.core.server_log import ServerReport

# The plan is made to be closer than this.
TOLERANCE = 0.05


def describe(plan: Plan) -> Workflow[None]:
    """Tell layers, memory and context of a plan."""
    spec, model = plan.spec, plan.needs.model
    yield Started("Planning")
    if isinstance(plan.context_wish, int) and plan.context_wish > spec.context:
        yield Warned(
            f"context {spec.context:,} instead of {plan.context_wish:,}:"
            f" {model.name} was made for no more"
        )
    for share in plan.placement.shares if plan.placement else ():
        yield Note(
            f"{share.device.name} ({share.device.host}): layers {share.first} to {share.last},"
            f" {size_text(share.memory.total)} of {size_text(share.device.usable)} usable"
        )
    yield Finished(
        "Planning",
        f"{model.name}, {size_text(model.weight_bytes)}, context {spec.context:,}"
        f" x {spec.parallel}, KV cache {spec.kv_type}, ubatch {spec.ubatch}",
    )


def compare(plan: Plan, report: ServerReport) -> Workflow[None]:
    """Tell whether llama-server holds the memory that was planned, aloud if it does not."""
    found = agreement(plan, report)
    off = [one for one in found if one.deviation > TOLERANCE]
    # The plan of other families is an estimate: more than planned is what matters there.
    for one in off:
        if plan.needs.exact or one.reported > one.planned:
            yield Warned(
                f"{one.device} ({one.host}): {one.part.replace('_', ' ')} takes"
                f" {size_text(one.reported)}, planned were {size_text(one.planned)}"
            )
    if found and not off:
        worst = max(one.deviation for one in found)
        yield Note(f"memory on every device as planned (within {100 * worst:.1f} %)")
