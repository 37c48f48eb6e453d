"""download, models."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ggufcluster.cli import options

if TYPE_CHECKING:
    from ggufcluster.cli.output import Output
    from ggufcluster.config import Settings
    from ggufcluster.core.download.presets import Preset
    from ggufcluster.workflows.download import Downloaded, DownloadRequest

_MOST_PARTS = 128
_KEYS = "workers.accept_new_host_keys"


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command(help=options.help_of(download))(download)
    app.command(help=options.help_of(models))(models)


def download(
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="On the hub.")],
    *,
    quant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Quantisation, such as UD-IQ4_XS.")
    ] = None,
    include: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Files to fetch, instead of --quant.")
    ] = None,
    revision: Annotated[str, typer.Option(metavar="NAME", help="Branch, tag or commit.")] = "main",
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Unset: OWNER/NAME under the models' folder."),
    ] = None,
    parts: Annotated[
        int, typer.Option(metavar="N", min=1, max=_MOST_PARTS, help="Connections at once.")
    ] = 16,
    restart: Annotated[
        bool, typer.Option("--restart", help="Replace files and parts of another version.")
    ] = False,
    inspect: Annotated[
        bool, typer.Option("--inspect/--no-inspect", help="Judge a model by its headers first.")
    ] = True,
    to_workers: Annotated[
        bool, typer.Option("--to-workers", help="Then send the files to every worker, too.")
    ] = False,
    worker: options.Workers = None,
    accept_new_host_keys: options.AcceptKeys = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Download a model: in parallel parts, resumable, verified.

    Ctrl-C keeps what has come; the same command goes on from there. HF_TOKEN, HF_ENDPOINT,
    HF_HUB_OFFLINE and proxy variables are honoured; files in the hub's cache are linked.
    Headers come first: a model that `inspect` refuses is not fetched.
    Workers need no copy to compute; with one, a worker can take the head's place.

    Examples:
      ggufcluster download unsloth/MiniMax-M3-GGUF --quant UD-IQ4_XS
      ggufcluster download OWNER/NAME --include '*Q4_K_M*' --dir /models
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.hub_wiring import open_hub
    from ggufcluster.workflows.download import download as bring

    request = _request(
        repository,
        quant=quant,
        include=include,
        revision=revision,
        folder=folder,
        parts=parts,
        restart=restart,
        inspect=inspect,
    )
    flags: dict[str, object] = {"workers.hosts": worker or None, _KEYS: accept_new_host_keys}
    settings = _settings_with_workers(flags) if to_workers else None
    output = Output(as_json=as_json, quiet=quiet)
    done = output.follow(bring(request, hub=open_hub()))
    if settings is not None:
        _send(output, request, done, settings)
    if as_json:
        output.data(_report(done))
        return
    for path in done.files:
        output.line(str(path))
    if done.models and not quiet:
        output.heading("Start it:" if len(done.models) == 1 else "Start one of them:")
        for first in done.models:
            output.line(f"  ggufcluster up --model {shlex.quote(str(first))}")


def models(
    *,
    worker: options.Workers = None,
    ask: Annotated[
        bool, typer.Option("--ask/--no-ask", help="Ask the hub for what there is now.")
    ] = True,
    accept_new_host_keys: options.AcceptKeys = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """List known GGUFs of MiniMax-M3, and whether they fit.

    Those with the indexer run sparse attention; the others run dense. Only weights are counted,
    against the memory that is free now on this machine and the workers, less what a plan leaves
    free: a twelfth of each, at most 9 GiB.

    Examples:
      ggufcluster models
      ggufcluster models -w 10.20.20.2
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.config import load_settings
    from ggufcluster.core.download.presets import spare_bytes
    from ggufcluster.hub_wiring import open_hub
    from ggufcluster.wiring import usable_memory
    from ggufcluster.workflows.catalogue import known_models

    flags = {
        "workers.hosts": worker or None,
        "workers.accept_new_host_keys": accept_new_host_keys,
    }
    settings = load_settings(os.environ, folder=Path.cwd(), flags=flags)
    output = Output(as_json=as_json, quiet=quiet)
    nodes = usable_memory(settings)
    found = output.follow(known_models(open_hub() if ask else None))
    rows = [(model, spare_bytes(model.size, nodes.values())) for model in found]
    if as_json:
        listed = [_model_report(model, spare) for model, spare in rows]
        output.data({"nodes": nodes, "models": listed})
        return
    output.table(
        ("repository", "quant", "attention", "memory", "fits"),
        [_model_row(model, spare) for model, spare in rows],
    )


def _model_report(model: Preset, spare: int | None) -> dict[str, object]:
    return {
        "repository": model.repository,
        "quant": model.quant,
        "has_indexer": model.has_indexer,
        "size": model.size,
        "is_live": model.is_live,
        "spare": spare,
        "fits": None if spare is None else spare >= 0,
    }


def _model_row(model: Preset, spare: int | None) -> tuple[str, ...]:
    from ggufcluster.core.units import size_text

    about = "" if model.is_live else "about "
    fits = "?" if spare is None else f"{size_text(abs(spare))} {'spare' if spare >= 0 else 'short'}"
    return (
        model.repository,
        model.quant or "?",
        "sparse" if model.has_indexer else "dense",
        "?" if model.size is None else about + size_text(model.size),
        fits,
    )


def _request(
    repository: str,
    *,
    quant: str | None,
    include: str | None,
    revision: str,
    folder: Path | None,
    parts: int,
    restart: bool,
    inspect: bool,
) -> DownloadRequest:
    from ggufcluster.core.download.listing import require_repository_name
    from ggufcluster.core.download.policy import FetchPolicy
    from ggufcluster.core.paths import paths_from_env
    from ggufcluster.errors import ConfigError
    from ggufcluster.workflows.download import DownloadRequest

    if quant and include:
        raise ConfigError("exclude each other", source="--quant and --include")
    try:
        require_repository_name(repository)
    except ValueError as error:
        raise ConfigError(str(error), source="download") from None
    return DownloadRequest(
        repository=repository,
        folder=folder or Path(paths_from_env(os.environ).models) / repository,
        quant=quant,
        include=include,
        revision=revision,
        restart=restart,
        inspect=inspect,
        policy=FetchPolicy(connections=parts),
    )


def _settings_with_workers(flags: dict[str, object]) -> Settings:
    from ggufcluster.config import load_settings
    from ggufcluster.errors import ConfigError

    settings = load_settings(os.environ, folder=Path.cwd(), flags=flags)
    if not settings["workers.hosts"]:
        reason = "no worker is named, neither with --worker nor in the settings"
        raise ConfigError(reason, source="--to-workers")
    return settings


def _send(output: Output, request: DownloadRequest, done: Downloaded, settings: Settings) -> None:
    from ggufcluster.wiring import world
    from ggufcluster.workflows.model_copies import send_to_workers

    with world(settings) as outside:
        output.follow(
            send_to_workers(
                outside.seams(),
                settings["workers.hosts"],
                done.files,
                root=request.folder,
                below=done.repository,
            )
        )


def _report(done: Downloaded) -> dict[str, object]:
    return {
        "repository": done.repository,
        "commit": done.commit,
        "files": [str(path) for path in done.files],
        "first": str(done.models[0]) if done.models else None,
        "models": [str(path) for path in done.models],
        "fetched_bytes": done.fetched,
        "linked": [str(path) for path in done.linked],
    }
