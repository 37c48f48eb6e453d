"""plan: what would fit where, and how fast it could be at best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ggufcluster.cli import options

if TYPE_CHECKING:
    from ggufcluster.config import Settings
    from ggufcluster.core.build_id import Backend


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=options.help_of(plan))(plan)


def plan(
    *,
    worker: options.Workers = None,
    model: options.Model = None,
    ctx: options.Context = None,
    parallel: options.Parallel = None,
    kv_type: options.KvType = None,
    ubatch: options.Ubatch = None,
    msa: options.Msa = None,
    backend: options.Backend = None,
    accept_new_host_keys: options.AcceptKeys = None,
    allow_public: options.AllowPublic = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Say what goes where, whether it fits, and how fast at most.

    Hosts are only looked at. `up` decides by the same rules, from what the workers report then.

    Examples:
      ggufcluster plan --worker 10.20.20.2 --model m3-00001-of-00005.gguf
      ggufcluster plan -w 10.20.20.2 --ctx max --parallel 2 --kv-type q8_0
    """
    from ggufcluster.cli import plan_report
    from ggufcluster.cli.output import Output
    from ggufcluster.wiring import settings_of, wish_of, world
    from ggufcluster.workflows.planning import outlook

    settings = settings_of(
        {
            "workers.hosts": worker or None,
            "model": model,
            "ctx": ctx,
            "parallel": parallel,
            "kv_type": kv_type,
            "ubatch": ubatch,
            "msa": msa,
            "engine.backend": backend,
            "workers.accept_new_host_keys": accept_new_host_keys,
            "workers.allow_public": allow_public,
        }
    )
    output = Output(as_json=as_json, quiet=quiet)
    wish = wish_of(settings, extra=())
    with world(settings) as outside:
        found = output.follow(outlook(outside.seams(), wish, backend=_backend(settings)))
    plan_report.show(output, found, as_json=as_json)


def _backend(settings: Settings) -> Backend | None:
    from ggufcluster.core.build_id import Backend

    wanted = settings["engine.backend"]
    return None if wanted == "auto" else Backend(wanted)
