"""A model hub on the loopback interface that misbehaves on demand.

It has two origins, as the real one has: the hub itself (names, hashes, redirects) and a file server
that signed addresses lead to.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ggufcluster.testing.bucket import Bucket
from ggufcluster.testing.hub_answers import FileHandler, HubHandler

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from http.server import BaseHTTPRequestHandler
    from typing import Self

_POLL = 0.01


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came in at `time`, seconds since 1970; `origin` is ``hub`` or ``files``."""

    origin: str
    method: str
    path: str
    headers: Mapping[str, str]
    time: float


@dataclass(slots=True)
class Fault:
    """How requests are answered wrongly.

    Attributes:
        kind: ``short`` closes early, ``stall`` falls silent, ``trickle`` becomes slow, ``reset``
            breaks the connection, ``corrupt`` sends one wrong byte, ``whole`` ignores the range,
            ``shifted`` sends other bytes, ``resized`` names another size, ``packed`` says that it
            is gzip, ``chunked`` is right but not plain, ``status`` refuses.
        times: How many requests are hit; None for all.
        after: Bytes of the body that come first (``short``, ``stall``, ``trickle``, ``reset``).
        status: What ``status`` answers.
        headers: Further headers of that answer.
        origin: ``files`` or ``hub``.
        match: Part of the path that must be there.
    """

    kind: str
    times: int | None = 1
    after: int = 0
    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    origin: str = "files"
    match: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """One file of a commit; `lfs` files have their SHA-256 published."""

    data: memoryview
    sha256: str
    git_sha1: str
    lfs: bool


class HubServer:
    """A hub with repositories; a context manager.

    Args:
        prefix: Path before everything, such as ``/mirror``.
        rate: Bytes a second that the file server sends over all connections; None for no limit.
        connection_rate: Bytes a second that it sends over one connection; None for no limit.
        host: Address of the loopback interface; ``::1`` for IPv6.

    Attributes:
        token: Access token that private and gated repositories want.
        asked: Every request, in order.
        served: Bytes of bodies that the file server sent, the last at `sent_at`.
        gated: Repositories that want their licence accepted, whatever the token.
        private: Repositories that are shown only with the token.
        direct: Serve files from the hub itself, without a redirect, as simple mirrors do.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        rate: float | None = None,
        connection_rate: float | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.prefix = prefix
        self._host = f"[{host}]" if ":" in host else host
        self.token = f"hf_{secrets.token_hex(8)}"
        self.asked: list[Asked] = []
        self.served = 0
        self.sent_at = 0.0
        self.gated: set[str] = set()
        self.private: set[str] = set()
        self.direct = False
        self.generation = 1
        self.bucket = Bucket(rate)
        self.connection_rate = connection_rate
        self._faults: list[Fault] = []
        self._files_scheme = "http"
        self._repositories: dict[str, dict[str, str]] = {}
        self._commits: dict[tuple[str, str], dict[str, Published]] = {}
        self._lock = threading.Lock()
        self.stopped = threading.Event()
        self._servers = [_server(host)(kind, host, self) for kind in (HubHandler, FileHandler)]
        self._threads = [
            threading.Thread(target=s.serve_forever, args=(_POLL,)) for s in self._servers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stopped.set()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()

    @property
    def root(self) -> str:
        """Address of the hub: what HF_ENDPOINT would be."""
        return f"http://{self._host}:{self._servers[0].server_port}{self.prefix}"

    @property
    def files_root(self) -> str:
        """Address of the file server: another origin."""
        return f"{self._files_scheme}://{self._host}:{self._servers[1].server_port}"

    def publish(
        self,
        repository: str,
        files: Mapping[str, bytes | Path],
        *,
        revision: str = "main",
        plain: tuple[str, ...] = (),
    ) -> str:
        """Make a commit that holds just these files and return its name.

        Args:
            repository: ``owner/name``.
            files: Contents by path; a Path is read from where it is.
            revision: Branch that points to the commit from now on.
            plain: Paths kept in git itself, without a published SHA-256.
        """
        listed = {
            name: _published(content, lfs=name not in plain) for name, content in files.items()
        }
        summary = json.dumps([(name, file.sha256) for name, file in sorted(listed.items())])
        commit = hashlib.sha1(f"{repository}{summary}".encode()).hexdigest()  # noqa: S324
        with self._lock:
            self._commits[repository, commit] = listed
            self._repositories.setdefault(repository, {})[revision] = commit
        return commit

    def fail(self, fault: Fault) -> None:
        """Answer wrongly from now on."""
        with self._lock:
            self._faults.append(fault)

    def heal(self) -> None:
        """Answer rightly from now on."""
        with self._lock:
            self._faults.clear()

    def expire(self) -> None:
        """Make every signed address that was given out so far worthless."""
        self.generation += 1

    def address(self, repository: str, path: str, *, revision: str = "main") -> str:
        """Return a signed address of a file on the file server."""
        commit = self.commit(repository, revision) or revision
        place = quote(f"{repository}/{commit}/{path}")
        end = int(time.time()) + 3600
        return f"{self.files_root}/{place}?Expires={end}&Signature={self.generation}"

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Speak TLS on the file server from now on."""
        server = self._servers[1]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        self._files_scheme = "https"

    def data_requests(self) -> list[Asked]:
        """Return the requests that came to the file server."""
        return [asked for asked in self.asked if asked.origin == "files"]

    def commit(self, repository: str, revision: str) -> str | None:
        """Return the commit that a branch or a commit's name stands for."""
        if (repository, revision) in self._commits:
            return revision
        return self._repositories.get(repository, {}).get(revision)

    def has_repository(self, repository: str) -> bool:
        """Tell whether there is such a repository."""
        return repository in self._repositories

    def files(self, repository: str, commit: str) -> dict[str, Published]:
        """Return the files of a commit."""
        return self._commits.get((repository, commit), {})

    def note(self, handler: BaseHTTPRequestHandler, origin: str) -> Fault | None:
        """Write a request down and return what is to go wrong with it."""
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self._lock:
            self.asked.append(Asked(origin, handler.command, handler.path, headers, time.time()))
            for fault in self._faults:
                if fault.origin == origin and fault.match in handler.path and fault.times != 0:
                    fault.times = None if fault.times is None else fault.times - 1
                    return fault
        return None

    def count(self, sent: int) -> None:
        """Add to the bytes served."""
        with self._lock:
            self.served += sent
            self.sent_at = time.time()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler], host: str, hub: HubServer) -> None:
        super().__init__((host, 0), handler)
        self.hub = hub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Be quiet about clients that go away."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server(host: str) -> type[_Server]:
    return _Server6 if ":" in host else _Server


def _published(content: bytes | Path, *, lfs: bool) -> Published:
    if isinstance(content, Path):
        with content.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    else:
        data = memoryview(content)
    git = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    git.update(data)
    return Published(data, hashlib.sha256(data).hexdigest(), git.hexdigest(), lfs)
