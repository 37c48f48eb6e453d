"""Join the workflows to the real outside worlds; the one place where they meet."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.adapters.http import HttpApi
from ggufcluster.adapters.local import LocalRemote
from ggufcluster.adapters.ports import free_port, try_listen
from ggufcluster.adapters.rpc import measure_link, probe_worker
from ggufcluster.adapters.ssh import SshRemote, find_target
from ggufcluster.core.build_id import Backend
from ggufcluster.core.paths import HostPaths, paths_from_env
from ggufcluster.workflows.build import BuildRequest, build_engine
from ggufcluster.workflows.deploy import deploy_engine
from ggufcluster.workflows.scratch_server import ScratchWorld
from ggufcluster.workflows.seams import Seams
from ggufcluster.workflows.store import Store
from ggufcluster.workflows.up import Engines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.adapters.http import Api, StreamingApi
    from ggufcluster.adapters.remote import FarRemote
    from ggufcluster.config import Settings
    from ggufcluster.core.engine import Engine
    from ggufcluster.core.secret import Secret
    from ggufcluster.core.worker_address import SshWorker


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
            api=_open_api,
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
        key = str(worker)
        if key not in self._hosts:
            remote = SshRemote(find_target(worker), accept_new_host_keys=self._accept)
            remote.connect()
            self._hosts[key] = remote
        return self._hosts[key]

    def close(self) -> None:
        """Close every connection."""
        while self._hosts:
            self._hosts.popitem()[1].close()


@contextmanager
def world(settings: Settings) -> Iterator[World]:
    """Open a `World` and close it again."""
    opened = World(settings)
    try:
        yield opened
    finally:
        opened.close()


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


def streaming_api(root: str, key: Secret | None) -> StreamingApi:
    """Open the API of a llama-server that also answers piece by piece."""
    return HttpApi(root, key=key)


def _open_api(root: str, key: Secret | None) -> Api:
    return HttpApi(root, key=key)
