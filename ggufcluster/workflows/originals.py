"""Read the files of an original model, here or far away, and only the parts that are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from ggufcluster.adapters.http import RangeClient, fetch_small
from ggufcluster.core.graft import INDEX, SINGLE, original_names, weight_files
from ggufcluster.core.safetensors import LENGTH_BYTES, StoredTensor, header_length, read_tensors
from ggufcluster.errors import GraftError, TransferError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ggufcluster.core.secret import Secret

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


@dataclass(slots=True)
class FarOriginals:
    """A folder on a server; after the first file from a hub its commit stays the same.

    Attributes:
        client: Connection that gives ranges.
        base: Address of the folder; ``{revision}`` in it stands for the revision.
        revision: Branch, tag or commit.
        name: Name for people.
        token: Access token of the hub, if any.
    """

    client: RangeClient
    base: str
    revision: str
    name: str
    token: Secret | None = None

    def small(self, file: str) -> bytes | None:
        """Fetch a small file whole; raises TransferError."""
        try:
            found = fetch_small(self._address(file), limit=_SMALL_BYTES, token=self.token)
        except TransferError as error:
            if error.status == _MISSING:
                return None
            raise
        self.revision = found.commit or self.revision
        return found.data

    def part(self, file: str, start: int, length: int) -> bytes:
        """Fetch bytes of a file; raises DownloadError."""
        return self.client.read(self._address(file), start, length)[0]

    def _address(self, file: str) -> str:
        base = self.base.replace("{revision}", quote(self.revision, safe=""))
        return f"{base.rstrip('/')}/{quote(file)}"


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
