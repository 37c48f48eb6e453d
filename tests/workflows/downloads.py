"""A downloader pointed at a hub that misbehaves on demand."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ggufcluster.adapters.hub import HuggingFaceHub
from ggufcluster.core.download.policy import FetchPolicy
from ggufcluster.workflows.download import Downloaded, DownloadRequest, download
from ggufcluster.workflows.events import Event, Progress, Warned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ggufcluster.core.secret import Secret
    from ggufcluster.testing import HubServer

REPO = "me/model"
# With parts so small that a small file has many.
POLICY = FetchPolicy(
    connections=4,
    part_bytes=64 << 10,
    least_split=1 << 30,  # parts are fetched once and by one, so that bytes can be counted
    attempts=4,
    pause=0.02,
)
# Connects anew so soon that a busy machine is taken for a silent server now and then.
IMPATIENT = replace(POLICY, attempts=20, silence=0.6, rate_window=1.0)


def content(size: int, *, seed: int = 1) -> bytes:
    """Return bytes that repeat nowhere."""
    return random.Random(seed).randbytes(size)


def shards(count: int, size: int, *, stem: str = "m-Q4_K_M", seed: int = 1) -> dict[str, bytes]:
    """Return a shard set of made-up contents."""
    return {
        f"{stem}-{n:05d}-of-{count:05d}.gguf": content(size + n, seed=seed * 100 + n)
        for n in range(1, count + 1)
    }


@dataclass
class Downloader:
    """Runs downloads into one folder and keeps their events."""

    server: HubServer
    folder: Path
    cache: Path
    token: Secret | None = None
    policy: FetchPolicy = POLICY
    inspect: bool = False  # most contents are made up
    events: list[Event] = field(default_factory=list)
    on_event: Callable[[], None] = lambda: None

    def run(
        self,
        *,
        quant: str | None = None,
        include: str | None = None,
        revision: str = "main",
        restart: bool = False,
    ) -> Downloaded:
        """Download to the end, or raise."""
        hub = HuggingFaceHub(endpoint=self.server.root, token=self.token, cache=self.cache)
        request = DownloadRequest(
            REPO,
            self.folder,
            quant=quant,
            include=include,
            revision=revision,
            restart=restart,
            inspect=self.inspect,
            policy=self.policy,
        )
        workflow = download(request, hub=hub)
        try:
            while True:
                self.events.append(next(workflow))
                self.on_event()
        except StopIteration as end:
            done: Downloaded = end.value
            return done
        finally:
            workflow.close()

    def stop_at(self, count: int, **wanted: str) -> int:
        """Stop as Ctrl-C would once `count` bytes have come; return how many had come.

        The server sends little more than that, so that it is no race.
        """
        self.server.hold(count + 10_000)
        hub = HuggingFaceHub(endpoint=self.server.root, token=self.token, cache=self.cache)
        request = DownloadRequest(
            REPO,
            self.folder,
            inspect=self.inspect,
            policy=self.policy,
            **wanted,  # type: ignore[arg-type]
        )
        workflow = download(request, hub=hub)
        for event in workflow:
            if isinstance(event, Progress) and event.label == "Downloading" and event.done >= count:
                workflow.close()
                self.server.release()
                return event.done
        raise AssertionError("it was done before")

    def warnings(self) -> str:
        """Return what was warned of."""
        return "\n".join(event.text for event in self.events if isinstance(event, Warned))

    def contents(self) -> dict[str, str]:
        """Return the hash of every file that has its final name."""
        return {
            path.relative_to(self.folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.folder.rglob("*")
            if path.is_file() and ".ggufcluster" not in path.parts
        }


def hashes(files: dict[str, bytes]) -> dict[str, str]:
    """Return the hash of each file."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
