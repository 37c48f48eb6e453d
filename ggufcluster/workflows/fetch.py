"""Fetch missing files: show how far they are, give each its name when its hash is right."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ggufcluster.adapters import files
from ggufcluster.adapters.fetching import Fetch
from ggufcluster.adapters.partial_file import PartialFile
from ggufcluster.core.units import seconds_text, size_text
from ggufcluster.errors import ChecksumError, DiskFullError, RemoteChangedError
from ggufcluster.workflows.events import Finished, Note, Progress, Started, Unit, Warned, Workflow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ggufcluster.adapters.http import RangeClient
    from ggufcluster.core.download.policy import FetchPolicy
    from ggufcluster.workflows.first_look import Addresses
    from ggufcluster.workflows.places import Place

_REPORT_SECONDS = 0.5
_TOTAL = "Downloading"
_GATE = "seconds that the server asks to wait"


def fetch_all(
    places: Sequence[Place], addresses: Addresses, client: RangeClient, *, policy: FetchPolicy
) -> Workflow[None]:
    """Fetch files to their places.

    Args:
        places: Where each goes; they are locked.
        addresses: Where they come from.
        client: Connections.
        policy: How many connections at once, and how patient.

    Raises:
        DownloadError: One cannot be had, or is not what was published.
        DiskFullError: No space is left; what has come is kept.
    """
    if not places:
        return
    yield Started(_TOTAL)
    begin = time.monotonic()
    partials = [PartialFile(p.partial, p.published, commit=p.commit) for p in places]
    before = sum(partial.done for partial in partials)
    if before:
        yield Note(f"going on with {size_text(before)} that are here")
    sources = [
        (partial, addresses.resolver(place.published))
        for partial, place in zip(partials, places, strict=True)
    ]
    with _kept(partials, places), Fetch(sources, client, policy=policy) as fetch:
        yield from _Run(fetch, places).follow()
    size = sum(place.published.size for place in places)
    rate = (size - before) / max(time.monotonic() - begin, 1e-3)
    yield Finished(_TOTAL, f"{size_text(size)}, verified, {size_text(rate)}/s")


@contextmanager
def _kept(partials: Sequence[PartialFile], places: Sequence[Place]) -> Iterator[None]:
    """Say on an error's way up what is kept, and what space is missing."""
    try:
        yield
    except BaseException as error:
        total = sum(partial.published.size for partial in partials)
        done = sum(partial.done for partial in partials)
        kept = sum(partial.kept for partial in partials)
        note = f"{size_text(kept)} of {size_text(total)} are kept; repeated, it goes on from there"
        if isinstance(error, DiskFullError):
            folder = places[0].folder
            free = files.free_bytes(folder)
            error = DiskFullError(error.host, path=str(folder), need=total - done, free=free)
            error.add_note(note)
            raise error from None
        error.add_note(note)
        raise


class _Run:
    """The loop around a `Fetch`."""

    def __init__(self, fetch: Fetch, places: Sequence[Place]) -> None:
        self._fetch = fetch
        self._places = places
        self._pending = set(range(len(places)))
        self._again: set[int] = set()
        self._told: dict[int, int] = {}
        self._gate = 0.0

    def follow(self) -> Workflow[None]:
        """Report until every file has its name."""
        yield from self._progress()
        reported = time.monotonic()
        while self._pending:
            self._fetch.wait(_REPORT_SECONDS)
            for number in sorted(self._pending):
                yield from self._look(number)
            if not self._pending or time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                yield from self._progress()
                yield from self._countdown()

    def _look(self, number: int) -> Workflow[None]:
        fetched, place = self._fetch.files[number], self._places[number]
        if fetched.is_stale:
            if number in self._again:
                raise RemoteChangedError("the server sends another file", where=place.label)
            self._again.add(number)
            yield Warned(f"{place.label} changed on the server: its parts are dropped")
            self._fetch.restart(number)
        elif fetched.hash.is_complete:
            yield from self._finish(number)

    def _finish(self, number: int) -> Workflow[None]:
        fetched, place = self._fetch.files[number], self._places[number]
        digest, got = place.published.digest, fetched.hash.hexdigest()
        if digest is None or digest.value == got:
            fetched.partial.seal()
            place.publish()
            self._pending.remove(number)
            return
        fetched.partial.set_aside(place.wrong)
        fetched.unsaved = 0
        error = ChecksumError(
            where=place.label, expected=digest.value, got=got, kept=str(place.wrong)
        )
        if number in self._again:
            raise error
        self._again.add(number)
        yield Warned(f"{error}; fetched once more")
        files.require_space(place.folder, place.published.size)
        self._fetch.restart(number)

    def _progress(self) -> Workflow[None]:
        done = [fetched.partial.done for fetched in self._fetch.files]
        sizes = [place.published.size for place in self._places]
        yield Progress(_TOTAL, sum(done), sum(sizes), Unit.BYTES)
        for number, place in enumerate(self._places):
            if self._told.get(number) != done[number]:
                self._told[number] = done[number]
                yield Progress(place.label, done[number], sizes[number], Unit.BYTES, _TOTAL)

    def _countdown(self) -> Workflow[None]:
        left = self._fetch.resume_at - time.monotonic()
        if left > 0:
            if not self._gate:
                yield Note(f"the server asks to wait {seconds_text(left)}")
            self._gate = max(self._gate, left)
            yield Progress(_GATE, round(self._gate - left), round(self._gate))
        elif self._gate:
            self._gate = 0.0
            yield Finished(_GATE)
