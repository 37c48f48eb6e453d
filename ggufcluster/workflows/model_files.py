"""Read the headers of a model's files, here or far away, and nothing of their weights."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ggufcluster.adapters.http import RangeClient, RemoteFile
from ggufcluster.core.gguf import read_header
from ggufcluster.core.gguf_cursor import FIRST_CHUNK_BYTES, ByteSource
from ggufcluster.core.shards import Shard
from ggufcluster.core.units import size_text
from ggufcluster.errors import ModelMissingError
from ggufcluster.workflows.events import Finished, Progress, Started, Workflow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ggufcluster.adapters.hub import Hub
    from ggufcluster.core.download.listing import Listing, PublishedFile

_LABEL = "Reading headers"


class OpenFile(ByteSource, Protocol):
    """A file that is read forwards."""

    @property
    def size(self) -> int:
        """Length of the whole file in bytes."""

    @property
    def fetched(self) -> int:
        """Bytes that came over the network so far."""


class ModelFile(Protocol):
    """One file of a model, wherever it is."""

    @property
    def path(self) -> str:
        """Name for people."""

    def open(self) -> AbstractContextManager[OpenFile]:
        """Open it."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this machine; `name` is what people know it by, if not its path."""

    place: Path
    name: str = ""

    @property
    def path(self) -> str:
        """Name for people."""
        return self.name or str(self.place)

    def open(self) -> AbstractContextManager[OpenFile]:
        """Open it; raises OSError."""
        return _LocalStream(self.place)


@dataclass(frozen=True, slots=True)
class FarFile:
    """A file on a server that gives ranges.

    Attributes:
        client: Connection to the server.
        url: Address of the file.
        path: Its name for people.
    """

    client: RangeClient
    url: str
    path: str

    def open(self) -> AbstractContextManager[OpenFile]:
        """Open it: little is fetched at first, more with each further request.

        Raises:
            DownloadError: The server does not give ranges of it.
        """
        return RemoteFile(self.client, self.url, block=FIRST_CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository, at one commit.

    Attributes:
        hub: The hub.
        client: Connection that gives ranges, with the hub's token.
        listing: What the repository publishes.
        published: The file.
    """

    hub: Hub
    client: RangeClient
    listing: Listing
    published: PublishedFile

    @property
    def path(self) -> str:
        """Name for people."""
        return f"{self.listing.repository}/{self.published.path}"

    def open(self) -> AbstractContextManager[OpenFile]:
        """Ask the hub for its address and open it as a `FarFile`; raises DownloadError."""
        url = self.hub.address(self.listing, self.published)
        return FarFile(self.client, url, self.path).open()


class _LocalStream(io.FileIO):
    fetched = 0

    @property
    def size(self) -> int:
        return os.fstat(self.fileno()).st_size


def read_shards(files: Sequence[ModelFile]) -> Workflow[list[Shard]]:
    """Read the header of each file, in order.

    Raises:
        NotGgufError: One is no GGUF file.
        TruncatedModelError: One ends too early.
        ModelFileError: A header cannot be right.
        DownloadError: A server does not give what was asked for.
    """
    yield Started(_LABEL)
    shards, fetched = [], 0
    for done, file in enumerate(files):
        yield Progress(_LABEL, done, len(files))
        with file.open() as stream:
            header = read_header(stream, size=stream.size, path=file.path)
            shards.append(Shard(file.path, stream.size, header))
            fetched += stream.fetched
    count = f"{len(files)} {'file' if len(files) == 1 else 'files'}"
    yield Finished(_LABEL, f"{count}, {size_text(fetched)} fetched" if fetched else count)
    return shards


def require_files(paths: Sequence[Path]) -> None:
    """Make sure that all files of a set are there.

    Raises:
        ModelMissingError: One is not.
    """
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        lost = f"{len(missing)} of {len(paths)} shards are missing: {', '.join(missing[:3])}"
        reason = lost if len(paths) > 1 else "no such file"
        raise ModelMissingError(reason, path=str(paths[0]))
