"""inspect: what a model is, by its headers alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ggufcluster.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=options.help_of(inspect))(inspect)


def inspect(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|OWNER/NAME|ADDRESS]", help="Unset: the model that `up` would run."
        ),
    ] = None,
    *,
    quant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Quantisation in a repository.")
    ] = None,
    include: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Files in a repository, instead of --quant.")
    ] = None,
    revision: Annotated[
        str, typer.Option(metavar="NAME", help="Branch, tag or commit of a repository.")
    ] = "main",
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show what a model is and whether the engine can run it.

    Reads headers only: of a file far away some megabytes are fetched, not the model.

    Examples:
      ggufcluster inspect m3-00001-of-00005.gguf
      ggufcluster inspect unsloth/MiniMax-M3-GGUF --quant UD-IQ4_XS
      ggufcluster inspect https://example.org/m3-00001-of-00005.gguf --json
    """
    from ggufcluster.cli import inspect_report
    from ggufcluster.cli.output import Output
    from ggufcluster.config import load_settings
    from ggufcluster.wiring import model_files
    from ggufcluster.workflows.inspect import inspect as look

    settings = load_settings(os.environ, folder=Path.cwd(), flags={})
    output = Output(as_json=as_json, quiet=quiet)
    wanted = model_files(
        target,
        default=settings["model"],
        quant=quant,
        include=include,
        revision=revision,
    )
    with wanted as files:
        found = output.follow(look(files))
    inspect_report.show(output, found, template=settings["template"], as_json=as_json)
