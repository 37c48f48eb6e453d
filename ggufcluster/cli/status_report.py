"""How `status` looks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ggufcluster.core.record import fields_for_scripts
from ggufcluster.core.units import seconds_text, size_text

if TYPE_CHECKING:
    from ggufcluster.cli.output import Output
    from ggufcluster.workflows.status import Status


def show(output: Output, status: Status, *, as_json: bool) -> None:
    """Print a status as tables or as JSON."""
    if as_json:
        written = fields_for_scripts(status.record)
        output.data({"healthy": status.healthy, **asdict(status), "record": written})
        return
    record = status.record
    busy = "-" if status.slots is None else f"{status.slots} of {record.parallel} busy"
    output.pairs(
        [
            ("head", status.head),
            ("url", f"{record.root}/v1"),
            ("model", record.model),
            ("engine", record.build_id),
            ("context", f"{record.context:,} tokens a slot"),
            ("slots", busy),
            ("sparse attention", record.sparse),
            ("template", record.template),
            ("up for", seconds_text(status.uptime)),
        ],
    )
    output.line()
    output.table(
        ("worker", "state", "endpoint", "round trip", "rate"),
        [
            (
                worker.name,
                status.workers[worker.name],
                worker.endpoint,
                f"{worker.round_trip * 1e6:.0f} us" if worker.rate else "-",
                f"{worker.rate / 1e6:.0f} MB/s" if worker.rate else "-",
            )
            for worker in record.workers
        ],
    )
    output.line()
    output.table(
        ("device", "on", "layers", "memory"),
        [
            (s.device, s.host, f"{s.first}-{s.first + s.layers - 1}", size_text(s.bytes))
            for s in record.shares
        ],
    )
