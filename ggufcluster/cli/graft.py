"""graft-indexer: make a dense MiniMax-M3 GGUF sparse."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ggufcluster.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("graft-indexer", help=options.help_of(graft_indexer))(graft_indexer)


def graft_indexer(
    model: Annotated[
        Path, typer.Argument(metavar="FILE", help="Any file of the set, or its folder.")
    ],
    *,
    original: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="REPO|FOLDER|ADDRESS",
            help="The original in safetensors. Unset: MiniMaxAI/MiniMax-M3.",
        ),
    ] = None,
    revision: Annotated[
        str, typer.Option(metavar="NAME", help="Branch, tag or commit of the repository.")
    ] = "main",
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="FOLDER", help="New folder. Unset: beside the old set."),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Add the indexer that a GGUF of MiniMax-M3 lacks.

    Fetches only the indexer's tensors of the original, writes a first and a last shard, and links
    the others. The old set stays as it is.

    Example:
      ggufcluster graft-indexer MiniMax-M3-UD-IQ4_XS-00001-of-00005.gguf
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.wiring import open_originals
    from ggufcluster.workflows.graft import graft_indexer as graft

    output = Output(as_json=as_json, quiet=quiet)
    with open_originals(original, revision=revision) as originals:
        first = output.follow(graft(model.absolute(), originals, folder))
    if as_json:
        output.data({"model": str(first)})
        return
    output.line(f"{first}")
    if not quiet:
        output.heading("Start it:")
        output.line(f"  ggufcluster up --model {shlex.quote(str(first))}")
