"""Read the files of an original model, here or far away, and only the parts that are needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from ggufcluster.adapters.addresses import Address
from ggufcluster.adapters.http import RangeClient, fetch_small
from ggufcluster.core.graft import INDEX, SINGLE, original_names, weight_files
from ggufcluster.core.http_answers import same_origin
from ggufcluster.core.safetensors import LENGTH_BYTES, StoredTensor, header_length, read_tensors
from ggufcluster.errors import GraftError, TransferError
from ggufcluster.workflows.inspect import hub_listing

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ggufcluster.adapters.hub import Hub
    from ggufcluster.core.download.listing import Listing, PublishedFile

_SMALL_BYTES = 64 << 20
_MISSING = 404


class Originals(Protocol):
    """A folder with an original model in safetensors files."""

    @property
    def name(self) -> str:
        """Name for people."""

    def small(self, file: str) -> bytes | None:
        """Return a small file whole, None if there is none of that name."""

    def part(self, file: str, start: int, length: int) -> bytes:
        """Return bytes of a file."""


@dataclass(frozen=True, slots=True)
class LocalOriginals:
    """A folder of this machine."""

    folder: Path

    @property
    def name(self) -> str:
        """Where it is."""
        return str(self.folder)

    def small(self, file: str) -> bytes | None:
        """Return a small file whole, None if there is none; raises OSError."""
        path = self.folder / file
        return path.read_bytes() if path.is_file() else None

    def part(self, file: str, start: int, length: int) -> bytes:
        """Return bytes of a file, fewer at its end; raises OSError."""
        with (self.folder / file).open("rb") as stream:
            stream.seek(start)
            return stream.read(length)


@dataclass(frozen=True, slots=True)
class FarOriginals:
    """A folder on a server.

    Attributes:
        client: Connection that gives ranges.
        name: Its address.
    """

    client: RangeClient
    name: str

    def small(self, file: str) -> bytes | None:
        """Fetch a small file whole; raises TransferError."""
        try:
            return fetch_small(self._address(file), limit=_SMALL_BYTES)
        except TransferError as error:
            if error.status == _MISSING:
                return None
            raise

    def part(self, file: str, start: int, length: int) -> bytes:
        """Fetch bytes of a file; raises DownloadError."""
        return self.client.read(self._address(file), start, length)[0]

    def _address(self, file: str) -> str:
        return f"{self.name.rstrip('/')}/{quote(file)}"


class HubOriginals:
    """A repository of the hub, at one commit; what is in the hub's cache is read there.

    Args:
        hub: The hub.
        client: Connection that gives ranges, with the hub's token.
        repository: Which one.
        revision: Branch, tag or commit.
    """

    def __init__(
        self, hub: Hub, client: RangeClient, repository: str, revision: str = "main"
    ) -> None:
        self.name = repository
        self._hub = hub
        self._client = client
        self._revision = revision
        self._addresses: dict[str, Address] = {}

    # The hub is asked only once something of it is wanted: a GGUF that is no good is told before.
    @cached_property
    def _listing(self) -> Listing:
        return hub_listing(self._hub, self.name, self._revision)

    @cached_property
    def _files(self) -> dict[str, PublishedFile]:
        return {file.path: file for file in self._listing.files}

    def small(self, file: str) -> bytes | None:
        """Return a small file whole, None if there is none; raises DownloadError."""
        if file not in self._files:
            return None
        if cached := self._hub.cached(self._listing, self._files[file]):
            return cached.read_bytes()
        url = self._hub.address(self._listing, self._files[file])
        token = self._hub.token if same_origin(url, self._hub.endpoint) else None
        return fetch_small(url, limit=_SMALL_BYTES, token=token)

    def part(self, file: str, start: int, length: int) -> bytes:
        """Return bytes of a file; raises DownloadError."""
        published = self._files.get(file)
        if published is None:
            raise GraftError(f"has no {file}", path=self.name)
        if cached := self._hub.cached(self._listing, published):
            return LocalOriginals(cached.parent).part(cached.name, start, length)
        resolve = partial(self._hub.address, self._listing, published)
        address = self._addresses.setdefault(file, Address(resolve))
        return self._client.read(address.current(), start, length)[0]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor of the original lies."""

    file: str
    tensor: StoredTensor

    def read(self, originals: Originals) -> bytes:
        """Return its data; raises GraftError if the file ends too early."""
        data = originals.part(self.file, self.tensor.start, self.tensor.size)
        if len(data) != self.tensor.size:
            raise GraftError("ends too early", path=f"{originals.name}/{self.file}")
        return data


def require_small(originals: Originals, file: str) -> bytes:
    """Return a small file; raises GraftError if it is not there."""
    found = originals.small(file)
    if found is None:
        raise GraftError(f"has no {file}: not an original model", path=originals.name)
    return found


def find_tensors(originals: Originals, wanted: Iterable[str]) -> dict[str, Place]:
    """Find where tensors lie in the original, by their names in a GGUF.

    Raises:
        GraftError: The files of the original cannot be right.
    """
    index = originals.small(INDEX)
    if index is None:
        return _in_file(originals, SINGLE, set(wanted))
    files = weight_files(index, path=f"{originals.name}/{INDEX}")
    names = original_names(files)
    found: dict[str, Place] = {}
    for file in sorted({files[names[name]] for name in wanted if name in names}):
        found |= _in_file(originals, file, set(wanted))
    return found


def _in_file(originals: Originals, file: str, wanted: set[str]) -> dict[str, Place]:
    path = f"{originals.name}/{file}"
    length = header_length(originals.part(file, 0, LENGTH_BYTES), path=path)
    header = originals.part(file, LENGTH_BYTES, length)
    if len(header) < length:
        raise GraftError("ends too early", path=path)
    tensors = read_tensors(
        header, keep=lambda name: bool(wanted & original_names([name]).keys()), path=path
    )
    return {ours: Place(file, tensors[theirs]) for ours, theirs in original_names(tensors).items()}
