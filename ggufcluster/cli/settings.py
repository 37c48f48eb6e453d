"""config: what is set and where it came from."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from ggufcluster.cli import options

_SHORT = 12


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=options.help_of(config))(config)


def config(*, as_json: options.Json = False) -> None:
    """Show every setting, merged, and where its value came from.

    Examples:
      ggufcluster config
      GGUFCLUSTER_HEAD_PORT=9000 ggufcluster config --json
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.config import load_settings

    merged = load_settings(os.environ, folder=Path.cwd()).items()
    output = Output(as_json=as_json)
    if as_json:
        output.data({key: {"value": v.value, "origin": v.origin} for key, v in merged})
        return
    # No table: it would fold paths, which are there to be copied.
    rows = [(key, f"{_shown(v.value):{_SHORT}}  {v.origin}") for key, v in merged]
    output.pairs([("setting", f"{'value':{_SHORT}}  from"), *rows])


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "-" if value is None else str(value)
