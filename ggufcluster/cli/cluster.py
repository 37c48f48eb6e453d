"""up, down, status, logs."""

from __future__ import annotations

from typing import Annotated

import typer

from ggufcluster.cli import options

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": False}


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(help=options.help_of(up), context_settings=_PASS_ON)(up)
    app.command(help=options.help_of(down))(down)
    app.command(help=options.help_of(status))(status)
    app.command(help=options.help_of(logs))(logs)


def up(
    context: typer.Context,
    *,
    worker: options.Workers = None,
    model: options.Model = None,
    ctx: options.Context = None,
    parallel: options.Parallel = None,
    kv_type: options.KvType = None,
    ubatch: options.Ubatch = None,
    msa: options.Msa = None,
    template: Annotated[
        str | None, typer.Option(metavar="FILE", help="Chat template. Unset: the model's own.")
    ] = None,
    template_style: Annotated[
        str | None,
        typer.Option(metavar="auto|native|hybrid|own", help="Made of the model's own template."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Of the API. Unset: 127.0.0.1.")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="N", help="Of the API. Unset: 8080.")] = None,
    api_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="One API key a line.")
    ] = None,
    backend: options.Backend = None,
    arch: options.Arch = None,
    jobs: options.Jobs = None,
    source: options.Source = None,
    accept_new_host_keys: options.AcceptKeys = None,
    allow_public: options.AllowPublic = None,
    drop_caches: Annotated[
        bool | None, typer.Option("--drop-caches", help="Free the page cache on every node.")
    ] = None,
    tool_check: Annotated[
        bool | None, typer.Option("--tool-check/--no-tool-check", help="Prove one tool call.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands, start nothing.")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Bring a cluster up: build, copy, start, load, prove.

    Everything after -- goes to llama-server as it is.

    Examples:
      ggufcluster up --worker 10.20.20.2
      ggufcluster up -w 10.20.20.2 -w spark@10.20.20.3 --model m3.gguf
      ggufcluster up -w local:2 --model toy.gguf -- --threads 4
    """
    from ggufcluster.cli import up_report
    from ggufcluster.cli.output import Output
    from ggufcluster.wiring import settings_of, wish_of, world
    from ggufcluster.workflows.dry_run import dry_run as dry
    from ggufcluster.workflows.up import Up

    settings = settings_of(
        {
            "workers.hosts": worker or None,
            "model": model,
            "ctx": ctx,
            "parallel": parallel,
            "kv_type": kv_type,
            "ubatch": ubatch,
            "msa": msa,
            "template": template,
            "template_style": template_style,
            "head.host": host,
            "head.port": port,
            "head.api_key_file": api_key_file,
            "engine.backend": backend,
            "engine.arch": arch or None,
            "engine.jobs": jobs,
            "engine.source": source,
            "workers.accept_new_host_keys": accept_new_host_keys,
            "workers.allow_public": allow_public,
            "head.drop_caches": drop_caches,
            "head.tool_check": tool_check,
        }
    )
    output = Output(as_json=as_json, quiet=quiet)
    wish = wish_of(settings, extra=tuple(context.args))
    with world(settings) as outside:
        if dry_run:
            plan = output.follow(dry(outside.seams(), wish, outside.build_request))
            up_report.show_dry_run(output, plan, as_json=as_json)
            return
        record = output.follow(Up(outside.seams(), outside.engines(), outside.store, wish).run())
    up_report.show(output, record, as_json=as_json)


def down(
    *,
    forget: Annotated[
        bool, typer.Option("--forget", help="Also if a host is gone for good.")
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """End exactly what up started, on every host.

    Example:
      ggufcluster down
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.wiring import settings_of, world
    from ggufcluster.workflows.down import down as take_down

    output = Output(as_json=as_json, quiet=quiet)
    with world(settings_of({})) as outside:
        found = output.follow(take_down(outside.seams(), outside.store, forget=forget))
    if as_json:
        output.data({"ended": found})
    elif found:
        output.line("the cluster is down")


def status(*, as_json: options.Json = False) -> None:
    """Show head, workers, layers and memory.

    The exit code is 0 only when all of it is healthy.

    Examples:
      ggufcluster status
      ggufcluster status --json | jq .healthy
    """
    from ggufcluster.cli import status_report
    from ggufcluster.cli.output import Output
    from ggufcluster.errors import ClusterUnhealthyError
    from ggufcluster.wiring import settings_of, world
    from ggufcluster.workflows.status import status as inspect

    output = Output(as_json=as_json)
    with world(settings_of({})) as outside:
        record = outside.store.load()
        if record is None:
            if as_json:
                output.data({"healthy": False, "problems": ["no cluster is up"]})
            raise ClusterUnhealthyError(("no cluster is up",))
        found = inspect(outside.seams(), record)
    status_report.show(output, found, as_json=as_json)
    if not found.healthy:
        raise ClusterUnhealthyError(found.problems)


def logs(
    who: Annotated[
        str, typer.Argument(metavar="[head|WORKER]", help="The head, or a worker by its name.")
    ] = "head",
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=1, help="Last lines.")
    ] = 50,
) -> None:
    """Show the log of the head or of a worker.

    When no cluster is up: the last log that is kept on this machine.

    Examples:
      ggufcluster logs
      ggufcluster logs worker -f
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.wiring import settings_of, world
    from ggufcluster.workflows.logs import logs as read

    output = Output()
    with world(settings_of({})) as outside:
        record = outside.store.load()
        for line in read(outside.seams(), record, who, lines=lines, follow=follow):
            output.line(line)
