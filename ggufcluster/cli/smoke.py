"""smoke: a short set of checks against the running cluster."""

from __future__ import annotations

import time

import typer

from ggufcluster.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=options.help_of(smoke))(smoke)


def smoke(
    *,
    url: options.Url = None,
    api_key_file: options.ApiKeyFile = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Try the running cluster: tools, JSON and a long prompt.

    It is asked for calls, a loop of them, an answer in JSON and one to a long prompt. The exit code
    is 0 only if all of them pass.

    Examples:
      ggufcluster smoke
      ggufcluster smoke --url http://192.168.1.10:8080
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.cli.server import find_server
    from ggufcluster.core.units import seconds_text
    from ggufcluster.errors import SmokeError
    from ggufcluster.wiring import streaming_api
    from ggufcluster.workflows.smoke import smoke as run

    output = Output(as_json=as_json, quiet=quiet)
    api = streaming_api(*find_server(url, api_key_file))
    results = output.follow(run(api, clock=time.monotonic))
    if as_json:
        output.data(
            [{"check": r.name, "seconds": r.seconds, "failure": r.failure} for r in results]
        )
    else:
        rows = [
            (r.name, "failed" if r.failure else "passed", seconds_text(r.seconds), r.failure)
            for r in results
        ]
        output.table(("check", "result", "time", "why"), rows)
    if failures := tuple(f"{r.name}: {r.failure}" for r in results if r.failure):
        raise SmokeError(failures, total=len(results))
