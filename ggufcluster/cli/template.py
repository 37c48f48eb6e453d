"""template: make, check and compare chat templates."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggufcluster.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.cli.output import Output
    from ggufcluster.core.template_style import Style
    from ggufcluster.wiring import World
    from ggufcluster.workflows.scratch_server import ScratchWorld
    from ggufcluster.workflows.templates import FoundTemplate

Gguf = Annotated[
    Path | None, typer.Option("--gguf", metavar="FILE", help="The model; any shard of a set.")
]
NeededGguf = Annotated[
    Path, typer.Option("--gguf", metavar="FILE", help="The model; any shard of a set.")
]
File = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="A template file.")]
Named = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="Which of the model's templates.")
]
StyleOption = Annotated[
    str, typer.Option("--style", metavar="hybrid|native", help="How calls are written.")
]
NoServer = Annotated[
    bool,
    typer.Option("--no-server", help="Leave out the check by llama-server; no engine is needed."),
]

_HELP = """Make and check chat templates.

\b
Example:
  ggufcluster template regen --gguf model-00001-of-00005.gguf
"""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=_HELP)
    for command in (regen, check, show, diff):
        group.command(help=options.help_of(command))(command)
    app.add_typer(group, name="template")


def regen(
    *,
    gguf: NeededGguf,
    style: StyleOption = "hybrid",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Where to write it.")
    ] = None,
    name: Named = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that ggufcluster did not write.")
    ] = False,
    no_server: NoServer = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Make a chat template from the model's own one, and check it.

    Nothing is written unless it passes `template check`.

    Examples:
      ggufcluster template regen --gguf m3-00001-of-00005.gguf --style native
      ggufcluster up --model m3-00001-of-00005.gguf --template m3.native.jinja
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.workflows.templates import read_gguf_template, regenerate

    output = Output(as_json=as_json, quiet=quiet)
    wanted = _style(style)
    found = read_gguf_template(gguf, name)
    target = out or Path(f"{_stem(found.path)}.{wanted.value}.jinja")
    with _outside(output, server=not no_server) as (world, outside):
        work = regenerate(found, wanted, target, local=world.local, outside=outside, replace=force)
        output.follow(work)
    if as_json:
        output.data({"file": str(target), "style": style, "from": found.path, "name": found.name})
        return
    output.line(str(target))


def check(
    file: File = None,
    *,
    gguf: Gguf = None,
    name: Named = None,
    no_server: NoServer = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Render conversations in a sandbox and by llama-server.

    Both must give the same prompts, byte for byte.

    Examples:
      ggufcluster template check m3.native.jinja
      ggufcluster template check --gguf m3-00001-of-00005.gguf --no-server
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.workflows import templates

    output = Output(as_json=as_json, quiet=quiet)
    found = _find(file, gguf, name)
    with _outside(output, server=not no_server) as (world, outside):
        talks = output.follow(templates.check(found, local=world.local, outside=outside))
    if as_json:
        output.data({"file": found.path, "name": found.name, "conversations": list(talks)})
        return
    output.line(f"{found.path}: {len(talks)} conversations render")


def show(
    file: File = None,
    *,
    gguf: Gguf = None,
    name: Named = None,
    as_json: options.Json = False,
) -> None:
    """Print a template as it is, and say on stderr what it is.

    Example:
      ggufcluster template show --gguf m3-00001-of-00005.gguf > m3.jinja
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.core.chat_template import template_kind
    from ggufcluster.core.template_style import family_of_template, style_of

    found = _find(file, gguf, name)
    style = style_of(found.text)
    facts = {
        "file": found.path,
        "name": found.name,
        "templates": list(found.names),
        "family": family_of_template(found.text),
        "parser": template_kind(found.text),
        "style": style.value if style else None,
    }
    output = Output(as_json=as_json)
    if as_json:
        output.data({**facts, "text": found.text})
        return
    output.remark(", ".join(f"{key} {value}" for key, value in facts.items() if key != "templates"))
    output.raw(found.text)


def diff(
    file: File = None,
    *,
    gguf: NeededGguf,
    style: StyleOption = "hybrid",
    name: Named = None,
) -> None:
    """Show how a file, or else a style, differs from the model's.

    Examples:
      ggufcluster template diff --gguf m3-00001-of-00005.gguf --style native
      ggufcluster template diff m3.native.jinja --gguf m3-00001-of-00005.gguf
    """
    import difflib

    from ggufcluster.cli.output import Output
    from ggufcluster.workflows.templates import (
        make_style,
        read_gguf_template,
        read_template_file,
    )

    own = read_gguf_template(gguf, name)
    other = read_template_file(file).text if file else make_style(own, _style(style))
    lines = difflib.unified_diff(
        own.text.splitlines(keepends=True),
        other.splitlines(keepends=True),
        own.origin,
        str(file) if file else f"{style} style",
    )
    Output().raw("".join(line if line.endswith("\n") else f"{line}\n" for line in lines))


def _find(file: Path | None, gguf: Path | None, name: str | None) -> FoundTemplate:
    from ggufcluster.errors import ConfigError
    from ggufcluster.workflows.templates import read_gguf_template, read_template_file

    if (file is None) == (gguf is None):
        raise ConfigError("name either a template file or a model", source="FILE and --gguf")
    if gguf is not None:
        return read_gguf_template(gguf, name)
    assert file is not None
    return read_template_file(file)


def _style(text: str) -> Style:
    from ggufcluster.core.template_style import Style
    from ggufcluster.errors import ConfigError

    try:
        return Style(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is neither hybrid nor native", source="--style") from error


def _stem(path: str) -> str:
    import re

    return re.sub(r"-\d{5}-of-\d{5}$", "", Path(path).stem)


@contextmanager
def _outside(output: Output, *, server: bool) -> Iterator[tuple[World, ScratchWorld | None]]:
    """Open this machine and, if llama-server is to check, have the engine."""
    from ggufcluster.config import load_settings
    from ggufcluster.wiring import world

    settings = load_settings(os.environ, folder=Path.cwd(), flags={})
    with world(settings) as opened:
        yield (
            opened,
            opened.scratch(output.follow(opened.engines().on_head())) if server else None,
        )
