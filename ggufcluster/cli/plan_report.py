"""How `plan` looks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ggufcluster.core.launch import server_command
from ggufcluster.core.reasons import reasons
from ggufcluster.core.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ggufcluster.cli.output import Output
    from ggufcluster.core.expectation import Bound, Expectation
    from ggufcluster.core.launch import LaunchSpec
    from ggufcluster.core.placement import Share
    from ggufcluster.workflows.planning import Outlook

_ROUND = 100


def show(output: Output, found: Outlook, *, as_json: bool) -> None:
    """Print a plan as tables with reasons, or as JSON."""
    if as_json:
        output.data(as_data(found))
        return
    plan = found.plan
    spec, needs = plan.spec, plan.needs
    output.pairs(
        [
            ("model", f"{spec.alias}, {size_text(needs.model.weight_bytes)}"),
            ("context", _context(spec)),
            ("KV cache", spec.kv_type),
            ("ubatch", f"{spec.ubatch} tokens"),
            ("attention", needs.workload.path if plan.sparse else "dense"),
            ("most context", _largest(found)),
        ]
    )
    output.line()
    output.table(_COLUMNS, list(_rows(found)))
    if found.expectation is not None:
        output.heading("Bounds for one request: real runs stay below")
        output.table(("of", "tokens/s", "what binds"), _bounds(found.expectation))
        if lacking := _lacking(found.expectation):
            output.paragraph(lacking)
    output.heading("Why")
    for reason in reasons(plan):
        output.paragraph(reason, mark="- ")


def _context(spec: LaunchSpec) -> str:
    slots = "1 slot" if spec.parallel == 1 else f"each of {spec.parallel} slots"
    return f"{spec.context:,} tokens in {slots}"


def as_data(found: Outlook) -> dict[str, Any]:
    """Return a plan as plain values; sizes are bytes, speeds tokens a second."""
    plan = found.plan
    spec, needs = plan.spec, plan.needs
    head = needs.head()
    return {
        "model": spec.alias,
        "weights": needs.model.weight_bytes,
        "context": spec.context,
        "parallel": spec.parallel,
        "kv_type": spec.kv_type,
        "ubatch": spec.ubatch,
        "attention": needs.workload.path if plan.sparse else "dense",
        "checked_against_engine": needs.exact,
        "device_order": [part.device for part in spec.split],
        "tensor_split": _option(found, "--tensor-split"),
        "devices": [_device(share) for share in _shares(found)],
        "head": {**asdict(head), "total": head.total},
        "largest_context": dict(found.largest),
        "bounds": asdict(found.expectation) if found.expectation else None,
        "why": list(reasons(plan)),
    }


_COLUMNS = ("device", "on", "layers", "weights", "cache", "compute", "other", "needs", "usable")


def _rows(found: Outlook) -> Iterable[tuple[str, ...]]:
    for share in _shares(found):
        memory, device = share.memory, share.device
        other = memory.total - memory.weights - memory.kv_cache - memory.compute
        sizes = (memory.weights, memory.kv_cache, memory.compute, other, memory.total)
        layers = f"{share.first}-{share.last}"
        yield (device.name, device.host, layers, *map(_short, (*sizes, device.usable)))
    plan = found.plan
    if plan.head is None or any(device.with_head for device in plan.devices):
        return
    head = plan.needs.head()
    other = head.total - head.embedding - head.inputs
    parts = (head.embedding, 0, head.inputs, other, head.total, plan.head.usable)
    yield ("-", "head", "-", *map(_short, parts))


def _short(size: int) -> str:
    return size_text(size).replace("iB", "") if size else "-"


def _shares(found: Outlook) -> tuple[Share, ...]:
    placement = found.plan.placement
    return placement.shares if placement else ()


def _device(share: Share) -> dict[str, Any]:
    memory, device = share.memory, share.device
    return {
        "device": device.name,
        "host": device.host,
        "chip": device.chip,
        "first_layer": share.first,
        "last_layer": share.last,
        **asdict(memory),
        "total": memory.total,
        "usable": device.usable,
        "headroom": device.headroom,
        "free": device.free,
    }


def _option(found: Outlook, name: str) -> str | None:
    from pathlib import PurePosixPath

    words = server_command(found.plan.spec, bin_folder=PurePosixPath()).plain_argv()
    return words[words.index(name) + 1] if name in words else None


def _largest(found: Outlook) -> str:
    return ", ".join(
        f"{context:,} with {kind}" if context else f"none with {kind}"
        for kind, context in found.largest.items()
    )


def _bounds(expectation: Expectation) -> list[tuple[str, str, str]]:
    reads = size_text(expectation.bytes_per_token)
    return [
        ("answering, at the start", *_bound(expectation.decode)),
        ("answering, context full", *_bound(expectation.decode_full)),
        ("reading a long prompt", *_bound(expectation.prefill)),
        ("weights a token reads", "-", reads),
    ]


def _bound(bound: Bound) -> tuple[str, str]:
    rate = bound.tokens_per_second
    if rate is None:
        return "unknown", "-"
    shown = f"{rate:,.{0 if rate >= _ROUND else 1}f}"
    return f"< {shown}", bound.binds + (" (not all is known)" if bound.unknown else "")


def _lacking(expectation: Expectation) -> str:
    """Say once what the bounds leave out: the hosts of each kind of part without figures."""
    bounds = (expectation.decode, expectation.decode_full, expectation.prefill)
    hosts: dict[str, dict[str, None]] = {}
    for bound in bounds:
        for lack in bound.unknown:
            hosts.setdefault(lack.what, {})[lack.host] = None
    groups = [
        f"{what} {'to' if what == 'link' else 'of'} {', '.join(names)}"
        for what, names in hosts.items()
    ]
    return f"Not counted for want of figures: {'; '.join(groups)}" if groups else ""
