"""Judge a model by its headers before the rest of it is fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.adapters.http import RemoteFile
from ggufcluster.core.download.choice import first_of_set, is_model
from ggufcluster.core.gguf_cursor import FIRST_CHUNK_BYTES
from ggufcluster.errors import (
    ModelFileError,
    RangesIgnoredError,
    RemoteChangedError,
    TransferError,
)
from ggufcluster.workflows.events import Warned, Workflow
from ggufcluster.workflows.inspect import inspect
from ggufcluster.workflows.model_files import LocalFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from ggufcluster.adapters.http import RangeClient
    from ggufcluster.adapters.hub import Hub
    from ggufcluster.core.download.listing import Listing, PublishedFile
    from ggufcluster.workflows.model_files import ModelFile, OpenFile
    from ggufcluster.workflows.places import Place


class Addresses:
    """Where the files of a listing are to be had; the hub is asked once for look and download.

    Args:
        hub: The hub.
        listing: What it publishes.
    """

    def __init__(self, hub: Hub, listing: Listing) -> None:
        self._hub = hub
        self._listing = listing
        self._kept: dict[str, str] = {}

    def look_up(self, file: PublishedFile) -> str:
        """Ask the hub and keep the answer for the download; raises DownloadError."""
        url = self._hub.address(self._listing, file)
        self._kept[file.path] = url
        return url

    def resolver(self, file: PublishedFile) -> Callable[[], str]:
        """Return what gives the kept address the first time, and asks the hub from then on."""
        return lambda: self._kept.pop(file.path, "") or self._hub.address(self._listing, file)


def look_first(
    places: Sequence[Place], missing: Sequence[Place], addresses: Addresses, client: RangeClient
) -> Workflow[None]:
    """Judge every model of which something is to be fetched.

    What is here is read here. A server that does not give the headers is left to the download,
    which has more patience and names what is wrong.

    Args:
        places: All chosen files.
        missing: Those that are to be fetched.
        addresses: Where they come from.
        client: Connections.

    Raises:
        ModelFileError: The engine cannot run one of the models; the class tells why.
    """
    wanted = {place.published.path for place in missing}
    for members in _models(places):
        files: list[ModelFile] = [
            _Published(place.published, addresses, client)
            if place.published.path in wanted
            else LocalFile(place.target, place.published.path)
            for place in members
        ]
        if not wanted.isdisjoint(place.published.path for place in members):
            yield from _judge(files)


def _judge(files: Sequence[ModelFile]) -> Workflow[None]:
    try:
        inspection = yield from inspect(files)
    except ModelFileError as error:
        error.add_note("only headers were fetched; --no-inspect downloads it all the same")
        raise
    except (TransferError, RangesIgnoredError, RemoteChangedError) as error:
        yield Warned(f"the headers could not be read ahead: {error}")
        return
    for warning in inspection.warnings:
        yield Warned(warning)


def _models(places: Sequence[Place]) -> list[list[Place]]:
    """Return the files of each model among those chosen, first shard first."""
    found: dict[str, list[Place]] = {}
    for place in places:
        if is_model(place.published.path):
            found.setdefault(first_of_set(place.published.path), []).append(place)
    return [sorted(members, key=lambda place: place.published.path) for members in found.values()]


@dataclass(frozen=True, slots=True)
class _Published:
    """A file that is looked at ahead of its download."""

    published: PublishedFile
    addresses: Addresses
    client: RangeClient

    @property
    def path(self) -> str:
        return self.published.path

    def open(self) -> AbstractContextManager[OpenFile]:
        """Ask for its address and open it; raises DownloadError."""
        url = self.addresses.look_up(self.published)
        stream = RemoteFile(self.client, url, block=FIRST_CHUNK_BYTES)
        if stream.size != self.published.size:
            reason = f"has {stream.size:,} bytes, published are {self.published.size:,}"
            raise RemoteChangedError(reason, where=self.path)
        return stream
