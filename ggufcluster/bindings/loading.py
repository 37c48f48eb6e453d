"""What is decided about a model in this process before it is loaded, and proven after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.devices import head_cpu, head_devices, worker_devices
from ggufcluster.core.plan import make_plan
from ggufcluster.core.server_log import parse_server_log
from ggufcluster.errors import ProofError
from ggufcluster.workflows.models import find_model, judge_model
from ggufcluster.workflows.proof import layout_failures, sparse_failures
from ggufcluster.workflows.up import list_devices_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ggufcluster.core.engine import Engine
    from ggufcluster.core.model import ModelFacts
    from ggufcluster.core.plan import Plan
    from ggufcluster.core.wish import Wish
    from ggufcluster.workflows.machines import Machine
    from ggufcluster.workflows.worker_group import WorkerGroup

_LIST_SECONDS = 30.0


def wished_model(wish: Wish, head: Machine) -> tuple[Path, ModelFacts]:
    """Find the model's first shard and read its headers.

    Raises:
        ModelFileError: It is not there, or not what it should be.
    """
    path = find_model(wish.model, Path(head.paths.models))
    return path, judge_model(path).facts


def make_local_plan(
    wish: Wish,
    group: WorkerGroup,
    head: Machine,
    path: Path,
    *,
    model: ModelFacts,
    engine: Engine,
) -> Plan:
    """Plan for the workers of a group, which run, and for this machine.

    Args:
        wish: What the user wants.
        group: The workers.
        head: This machine.
        path: The model's first shard.
        model: What its headers say.
        engine: Lists the devices of this machine.

    Raises:
        PlacementError: The model does not fit.
    """
    devices = worker_devices(group.memories)
    # Workers on this machine already offer its GPUs; their memory must not count twice.
    if not any(memory.machine == "local" for memory in group.memories):
        listing = head.remote.run(list_devices_command(engine), timeout=_LIST_SECONDS)
        devices += head_devices(listing.stdout, unified=head.facts.unified)
    return make_plan(
        wish,
        model,
        PurePosixPath(path),
        devices=devices,
        endpoints=group.endpoints,
        head=head_cpu(head.facts),
    )


def prove(plan: Plan, log: Sequence[str], names: Mapping[str, str]) -> None:
    """Compare what the engine said with the plan.

    Args:
        plan: The plan.
        log: Lines of the engine while it loaded.
        names: What the engine calls each device of the plan.

    Raises:
        ProofError: Layers or sparse attention are not as planned.
    """
    report = parse_server_log(log)
    shares = [
        replace(share, device=replace(share.device, name=names[share.device.name]))
        for share in (plan.placement.shares if plan.placement else ())
        if share.device.name in names
    ]
    failures = layout_failures(report, shares, plan.spec.endpoints)
    failures += sparse_failures(report, wanted=plan.sparse)
    if failures:
        raise ProofError(tuple(failures))


def reason_of(log: Sequence[str], otherwise: str) -> str:
    """Return why loading failed: the engine's own words if there are any."""
    told = [line for line in log if "error" in line.lower() or "failed" in line.lower()]
    return told[0].strip() if told else otherwise
