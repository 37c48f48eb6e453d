"""prune: free the disk from engines of other versions."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ggufcluster.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.cli.output import Output
    from ggufcluster.core.prune import Entry
    from ggufcluster.workflows.prune import Pruned

_FEW = 4  # more of what stays for one reason are counted; --json names all


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=options.help_of(prune))(prune)


def prune(
    *,
    worker: options.Workers = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    source: options.Source = None,
    accept_new_host_keys: options.AcceptKeys = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Remove engines of other versions, here and on workers.

    Their build folders and sources go, too. What a process runs from stays, and what the record of
    the cluster names. Models are not touched.

    Examples:
      ggufcluster prune --dry-run
      ggufcluster prune --worker 10.20.20.2
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.config import load_settings
    from ggufcluster.core.worker_address import parse_worker
    from ggufcluster.wiring import world
    from ggufcluster.workflows import prune as work

    flags = {
        "engine.source": source,
        "workers.accept_new_host_keys": accept_new_host_keys,
    }
    settings = load_settings(os.environ, folder=Path.cwd(), flags=flags)
    output = Output(as_json=as_json, quiet=quiet)
    # Only workers named here, as for a build: nothing is removed from a host of a file unasked.
    targets = [parse_worker(text) for text in worker or ()]
    with world(settings) as outside:
        current = work.current_fingerprints(outside.build_request)
        record = outside.store.load()
        recorded = frozenset({record.build_id} if record else ())
        hosts = outside.hosts(targets)
        found = {
            remote.name: output.follow(
                work.prune(remote, paths, fingerprints=current, recorded=recorded, dry_run=dry_run)
            )
            for remote, paths in hosts
        }
    if as_json:
        output.data({host: _data(pruned, dry_run=dry_run) for host, pruned in found.items()})
        return
    for host, pruned in found.items():
        _show(output, host, pruned, dry_run=dry_run)


def _show(output: Output, host: str, pruned: Pruned, *, dry_run: bool) -> None:
    from ggufcluster.core.units import size_text

    output.heading(host)
    for entry in pruned.removed:
        output.line(f"  {size_text(entry.size):>8}  {entry.path}")
    by_reason: dict[str, list[Entry]] = {}
    for kept in pruned.kept:
        by_reason.setdefault(kept.reason, []).append(kept.entry)
    for reason, entries in by_reason.items():
        for what in _named(entries):
            output.line(f"  kept: {what}: {reason}")
    done = "would be freed" if dry_run else "freed"
    output.line(f"  {size_text(pruned.size)} {done} in {pruned.cache}")


def _named(entries: Sequence[Entry]) -> list[str]:
    """Name each of a few entries, and say of many how many of what they are."""
    if len(entries) <= _FEW:
        return [entry.path for entry in entries]
    counts = Counter(entry.kind.value for entry in entries)
    return [" and ".join(f"{count} in {kind}" for kind, count in counts.items())]


def _data(pruned: Pruned, *, dry_run: bool) -> dict[str, Any]:
    return {
        "cache": pruned.cache,
        "dry_run": dry_run,
        "bytes": pruned.size,
        "removed": [{"path": entry.path, "bytes": entry.size} for entry in pruned.removed],
        "kept": [
            {"path": kept.entry.path, "bytes": kept.entry.size, "reason": kept.reason}
            for kept in pruned.kept
        ],
    }
