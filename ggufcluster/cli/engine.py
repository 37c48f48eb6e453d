"""build: the engine, here and on workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ggufcluster.cli import options

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=options.help_of(build))(build)


def build(
    *,
    worker: options.Workers = None,
    backend: options.Backend = None,
    arch: options.Arch = None,
    jobs: options.Jobs = None,
    source: options.Source = None,
    accept_new_host_keys: options.AcceptKeys = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Build llama.cpp with our patch series, here and on workers.

    A worker equal to this machine gets a copy; another one builds its own.

    Examples:
      ggufcluster build
      ggufcluster build --backend cuda --arch 121 --worker 10.20.20.2
    """
    from ggufcluster.cli.output import Output
    from ggufcluster.config import load_settings
    from ggufcluster.core.worker_address import SshWorker, parse_worker
    from ggufcluster.wiring import world

    flags = {
        "workers.hosts": worker or None,
        "engine.backend": backend,
        "engine.arch": arch or None,
        "engine.jobs": jobs,
        "engine.source": source,
        "workers.accept_new_host_keys": accept_new_host_keys,
    }
    settings = load_settings(os.environ, folder=Path.cwd(), flags=flags)
    output = Output(as_json=as_json, quiet=quiet)
    # Only workers named here: a build must not reach out to hosts from a file unasked.
    targets = [parse_worker(text) for text in worker or ()]
    with world(settings) as outside:
        engines = outside.engines()
        here = output.follow(engines.on_head())
        built = {outside.local.name: here}
        for target in targets:
            if isinstance(target, SshWorker):
                remote = outside.connect(target)
                built[remote.name] = output.follow(engines.on_worker(remote, here))
    if as_json:
        output.data({host: _summary(engine) for host, engine in built.items()})
        return
    for host, engine in built.items():
        output.heading(host)
        output.pairs((name, str(value)) for name, value in _summary(engine).items())


def _summary(engine: Engine) -> dict[str, Any]:
    return {
        "engine": engine.build_id,
        "fingerprint": engine.fingerprint,
        "backend": engine.backend.value,
        "architectures": ", ".join(engine.architectures) or "-",
        "rdma": "on (libibverbs found)" if engine.rdma else "off (no libibverbs)",
        "folder": str(engine.folder),
    }
