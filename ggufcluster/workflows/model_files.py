"""Read the headers of a model's files, here or far away, and nothing of their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

from ggufcluster.adapters.http import RangeClient, RemoteFile
from ggufcluster.core.gguf import read_header
from ggufcluster.core.gguf_cursor import FIRST_CHUNK_BYTES
from ggufcluster.core.shards import Shard
from ggufcluster.errors import ModelMissingError
from ggufcluster.workflows.events import Finished, Progress, Started, Workflow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ggufcluster.core.gguf_cursor import ByteSource

_LABEL = "Reading headers"


class ModelFile(Protocol):
    """One file of a model, wherever it is.

    Attributes:
        path: Its name for people.
    """

    @property
    def path(self) -> str:
        """Name for people."""

    def open(self) -> AbstractContextManager[tuple[ByteSource, int]]:
        """Open it for reading forwards; gives the stream and the length of the file in bytes."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this machine."""

    place: Path

    @property
    def path(self) -> str:
        """Where it is."""
        return str(self.place)

    def open(self) -> _Opened:
        """Open it."""
        return _Opened(self.place.open("rb", buffering=0), self.place.stat().st_size)


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

    def open(self) -> _Opened:
        """Open it; little is fetched at first, and more with each further request."""
        remote = RemoteFile(self.client, self.url, block=FIRST_CHUNK_BYTES)
        return _Opened(remote, remote.size)


class _Opened:
    """A stream to close, with the length of its file."""

    def __init__(self, stream: BinaryIO | RemoteFile, size: int) -> None:
        self._stream = stream
        self._size = size

    def __enter__(self) -> tuple[ByteSource, int]:
        return self._stream, self._size

    def __exit__(self, *_exc: object) -> None:
        self._stream.close()


def read_shards(files: Sequence[ModelFile]) -> Workflow[list[Shard]]:
    """Read the header of each file, in order.

    Raises:
        NotGgufError: One is no GGUF file.
        TruncatedModelError: One ends too early.
        ModelFileError: A header cannot be right.
        DownloadError: A server does not give what was asked for.
    """
    yield Started(_LABEL)
    shards = []
    for done, file in enumerate(files):
        yield Progress(_LABEL, done, len(files))
        shards.append(read_shard(file))
    yield Finished(_LABEL, f"{len(files)} {'file' if len(files) == 1 else 'files'}")
    return shards


def read_shard(file: ModelFile) -> Shard:
    """Read the header of one file; errors as `read_shards` has them."""
    with file.open() as (stream, size):
        header = read_header(stream, size=size, path=file.path)
    return Shard(file.path, size, header)


def require_files(paths: Sequence[Path]) -> None:
    """Make sure that all files of a set are there.

    Raises:
        ModelMissingError: One is not.
    """
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ModelMissingError(
            f"{len(missing)} of {len(paths)} shards are missing: {', '.join(missing[:3])}",
            path=str(paths[0]),
        )
