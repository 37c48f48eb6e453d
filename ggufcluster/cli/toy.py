"""toy: tiny models of the real architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ggufcluster.cli import options


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=options.help_of(toy))(toy)


def toy(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to write them.")] = Path(
        "toys"
    ),
    *,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random weights.")] = 1,
    as_json: options.Json = False,
) -> None:
    """Write two toy models of MiniMax-M3's architecture.

    One has random weights, for numerics; one recites a tool call, for everything else.

    Example:
      ggufcluster toy toys
      ggufcluster up -w local:2 --model toys/toy-minimax-m3-recite.gguf
    """
    from ggufcluster import resources
    from ggufcluster.cli.output import Output
    from ggufcluster.core.units import size_text
    from ggufcluster.workflows.toy import write_toys

    template = resources.templates() / "toy" / "minimax-m3-toy.jinja"
    paths = write_toys(folder, template=template.read_text(encoding="utf-8"), seed=seed)
    output = Output(as_json=as_json)
    if as_json:
        output.data({"models": [str(path) for path in paths]})
        return
    for path in paths:
        output.line(f"{path}  {size_text(path.stat().st_size)}")
