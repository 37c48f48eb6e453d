"""Join the workflows to the real outside worlds; the one place where they meet."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.adapters.files import replace_file
from ggufcluster.adapters.http import HttpApi, RangeClient
from ggufcluster.adapters.line_input import LineInput
from ggufcluster.adapters.local import LocalRemote
from ggufcluster.adapters.ports import free_port, try_listen
from ggufcluster.adapters.rpc import measure_link, probe_worker
from ggufcluster.adapters.tool_file import Toolbox, load_toolbox
from ggufcluster.config import load_settings
from ggufcluster.core.build_id import Backend
from ggufcluster.core.graft import ORIGINAL
from ggufcluster.core.paths import HostPaths, paths_from_env
from ggufcluster.core.placement import headroom_of
from ggufcluster.core.wish import Wish
from ggufcluster.core.worker_address import SshWorker, parse_worker
from ggufcluster.errors import ConfigError
from ggufcluster.hub_wiring import open_hub
from ggufcluster.workflows.build import BuildRequest, build_engine
from ggufcluster.workflows.deploy import deploy_engine, worker_paths
from ggufcluster.workflows.inspect import (
    far_files,
    hub_files,
    is_address,
    is_repository,
    local_files,
    split_address,
)
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.originals import FarOriginals, HubOriginals, LocalOriginals
from ggufcluster.workflows.pretrained import bring_model
from ggufcluster.workflows.scratch_server import ScratchWorld
from ggufcluster.workflows.seams import Seams
from ggufcluster.workflows.store import Store
from ggufcluster.workflows.up import Engines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from ggufcluster.adapters.http import StreamingApi
    from ggufcluster.adapters.hub import Hub
    from ggufcluster.adapters.remote import FarRemote, Remote
    from ggufcluster.config import Setting, Settings
    from ggufcluster.core.engine import Engine
    from ggufcluster.core.secret import Secret
    from ggufcluster.core.worker_address import WorkerAddress
    from ggufcluster.workflows.events import Workflow
    from ggufcluster.workflows.model_files import ModelFile
    from ggufcluster.workflows.originals import Originals


class World:
    """Connections to hosts, opened when first needed and shared until `close`."""

    def __init__(self, settings: Settings) -> None:
        self.paths: HostPaths = paths_from_env(os.environ)
        self.local = LocalRemote()
        self.store = Store(self.paths)
        self.build_request = build_request(settings)
        self._accept = bool(settings["workers.accept_new_host_keys"])
        self._hosts: dict[str, FarRemote] = {}

    def seams(self) -> Seams:
        """Return the outside worlds of the cluster workflows."""
        return Seams(
            local=self.local,
            connect=self.connect,
            probe=probe_worker,
            measure=measure_link,
            try_listen=try_listen,
            api=streaming_api,
        )

    def engines(self) -> Engines:
        """Return how engines come about."""
        return Engines(
            on_head=lambda: build_engine(self.local, self.build_request, paths=self.paths),
            on_worker=lambda remote, engine: deploy_engine(
                engine, remote, local=self.local, paths=self.paths, request=self.build_request
            ),
        )

    def scratch(self, engine: Engine) -> ScratchWorld:
        """Return what a llama-server with a toy needs of the outside."""
        return ScratchWorld(
            local=self.local,
            engine=engine,
            open_api=HttpApi,
            free_port=free_port,
            clock=time.monotonic,
            sleep=time.sleep,
        )

    def connect(self, worker: SshWorker) -> FarRemote:
        """Return the connection to a host, opening it if there is none yet."""
        # It takes long to load, and much is done without any other host.
        from ggufcluster.adapters.ssh import SshRemote, find_target  # noqa: PLC0415

        key = str(worker)
        if key not in self._hosts:
            remote = SshRemote(find_target(worker), accept_new_host_keys=self._accept)
            remote.connect()
            self._hosts[key] = remote
        return self._hosts[key]

    def hosts(self, workers: Iterable[WorkerAddress]) -> list[tuple[Remote, HostPaths]]:
        """Return this machine and each far worker's, with their folders; all are reached."""
        far = [self.connect(worker) for worker in workers if isinstance(worker, SshWorker)]
        return [(self.local, self.paths), *((remote, worker_paths(remote)) for remote in far)]

    def close(self) -> None:
        """Close every connection."""
        while self._hosts:
            self._hosts.popitem()[1].close()


@contextmanager
def world(settings: Settings) -> Iterator[World]:
    """Open a `World` and close it again; a setting that is wrong is told as it was written."""
    opened = World(settings)
    try:
        with told_as_written(settings):
            yield opened
    finally:
        opened.close()


@contextmanager
def told_as_written(settings: Settings) -> Iterator[None]:
    """Have an error about a setting name the option, variable or line that gave it."""
    try:
        yield
    except ConfigError as error:
        error.move(settings.place(error.source))
        raise


@contextmanager
def model_files(
    target: str | None,
    *,
    default: str | None,
    quant: str | None = None,
    include: str | None = None,
    revision: str = "main",
) -> Iterator[Sequence[ModelFile]]:
    """Give the files of a model: of this machine, at an address, or in a repository of the hub.

    Args:
        target: What was asked for.
        default: File of this machine that is meant if nothing was.
        quant: Quantisation in a repository.
        include: Shell pattern instead.
        revision: Branch, tag or commit of a repository.

    Raises:
        ModelMissingError: It is not on this machine.
        DownloadError: It is not on the hub.
    """
    if target is not None and is_address(target):
        with RangeClient() as client:
            yield far_files(client, target)
    elif target is not None and is_repository(target):
        with _hub_client() as (hub, client):
            yield hub_files(hub, client, target, quant=quant, include=include, revision=revision)
    else:
        yield local_files(target or default, Path(paths_from_env(os.environ).models))


def pretrained(
    repository: str, folder: str | PathLike[str] | None, *, names: Sequence[str | None]
) -> Workflow[Path]:
    """Bring a model from the hub, into the models' folder if none is given."""
    place = Path(folder or Path(paths_from_env(os.environ).models) / repository)
    return bring_model(repository, place, names=names, hub=open_hub())


@contextmanager
def open_originals(place: str | None, *, revision: str) -> Iterator[Originals]:
    """Open an original model: a folder of this machine, an address, or a repository of the hub."""
    place = place or ORIGINAL
    if is_address(place):
        split_address(place)
        with RangeClient() as client:
            yield FarOriginals(client, place)
    elif is_repository(place):
        with _hub_client() as (hub, client):
            yield HubOriginals(hub, client, place, revision)
    else:
        yield LocalOriginals(Path(place).expanduser())


@contextmanager
def _hub_client() -> Iterator[tuple[Hub, RangeClient]]:
    hub = open_hub()
    with RangeClient(token=hub.token, token_for=hub.endpoint) as client:
        yield hub, client


def build_request(settings: Settings) -> BuildRequest:
    """Read from the settings what is to be built."""
    backend = settings["engine.backend"]
    source = settings["engine.source"]
    return BuildRequest(
        backend=None if backend == "auto" else Backend(backend),
        architectures=settings["engine.arch"],
        jobs=settings["engine.jobs"],
        source=Path(source) if source else None,
    )


def usable_memory(settings: Settings) -> dict[str, int]:
    """Return the memory that may be filled here and on each worker's machine, in bytes, by name.

    That is what is free, less what a plan leaves free as well. A machine counts once, however it is
    called. Raises `HostError`.
    """
    targets = [parse_worker(text) for text in settings["workers.hosts"]]
    with world(settings) as outside:
        far = [outside.connect(target) for target in targets if isinstance(target, SshWorker)]
        machines = [survey(remote) for remote in (outside.local, *far)]
    by_id = {machine.facts.machine_id: machine for machine in reversed(machines)}
    facts = {machine.name: machine.facts for machine in reversed(by_id.values())}
    return {
        name: max(0, found.memory_available - headroom_of(found.memory_total))
        for name, found in facts.items()
    }


def streaming_api(root: str, key: Secret | None) -> StreamingApi:
    """Open the API of a llama-server that also answers piece by piece."""
    return HttpApi(root, key=key)


def chat_lines(completions: Callable[[str], list[str]]) -> LineInput:
    """Read what a person types into the chat, with its history in the state folder."""
    history = Path(paths_from_env(os.environ).state) / "chat_history"
    return LineInput(history, completions)


def chat_tools(path: Path) -> Toolbox:
    """Run a Python file of the user's and take its functions as tools; raises `ToolFileError`."""
    return load_toolbox(path)


def save_file(path: Path, content: bytes) -> None:
    """Write a file of the user's whole or not at all; raises OSError."""
    replace_file(path, content)


def wish_of(settings: Settings, *, extra: tuple[str, ...]) -> Wish:
    """Read from the settings what `up` is asked for."""
    return Wish(
        workers=settings["workers.hosts"],
        model=_absolute(settings["model"]),
        context=settings["ctx"],
        parallel=settings["parallel"],
        kv_type=settings["kv_type"],
        ubatch=settings["ubatch"],
        msa=settings["msa"],
        index_type=settings["msa_index_type"],
        template=_path(settings["template"]),
        template_style=settings["template_style"],
        host=settings["head.host"],
        port=settings["head.port"],
        api_key_file=_path(settings["head.api_key_file"]),
        extra=extra,
        allow_public=settings["workers.allow_public"],
        drop_caches=settings["head.drop_caches"],
        tool_check=settings["head.tool_check"],
        ready_seconds=float(settings["workers.ready_seconds"]),
        stall_seconds=float(settings["head.stall_seconds"]),
    )


def settings_of(
    flags: Mapping[str, object], *, name_of: Callable[[Setting], str] | None = None
) -> Settings:
    """Merge the settings of every source with flags; None counts as not given.

    In errors a flag is called what `name_of` says; an option of a command if that is None.
    """
    return load_settings(os.environ, folder=Path.cwd(), flags=flags, name_of=name_of)


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def _absolute(text: str | None) -> str | None:
    return str(Path(text).expanduser().absolute()) if text else None
