"""Bring the files of one model from a hub to this machine, verified."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.adapters import files
from ggufcluster.adapters.http import RangeClient
from ggufcluster.adapters.partial_file import hash_file, read_note, usable_spans
from ggufcluster.core.download.choice import choose, first_shards
from ggufcluster.core.download.extents import Extents
from ggufcluster.core.download.listing import require_safe
from ggufcluster.core.download.policy import FetchPolicy
from ggufcluster.core.gguf import read_header
from ggufcluster.core.model import shard_names
from ggufcluster.core.units import MIB, size_text
from ggufcluster.errors import (
    FileChoiceError,
    LocalFileError,
    ModelFileError,
    OfflineError,
    RevisionMovedError,
    ShardSetError,
)
from ggufcluster.workflows.events import Finished, Note, Progress, Started, Unit, Warned, Workflow
from ggufcluster.workflows.fetch import fetch_all
from ggufcluster.workflows.first_look import Addresses, look_first
from ggufcluster.workflows.places import (
    Place,
    keep_listing,
    kept_listing,
    kept_listings,
    locked,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.adapters.hub import Hub
    from ggufcluster.core.download.listing import Listing, PublishedFile

_MARGIN = 64 * MIB
_REPORT_BYTES = 64 * MIB
# A look ahead that has to wait longer is left out: the download itself waits with a countdown.
_LOOK_WAIT = 2.0


@dataclass(frozen=True, slots=True)
class DownloadRequest:
    """What is wanted.

    Attributes:
        repository: ``owner/name``.
        folder: Where the files go, under their published paths.
        quant: Name of a quantisation; None if the repository has one only.
        include: Shell pattern instead.
        revision: Branch, tag or commit.
        restart: Replace files and parts of another version, instead of refusing.
        inspect: Judge a model by its headers before the rest of it is fetched.
        policy: How many connections and how patient.
    """

    repository: str
    folder: Path
    quant: str | None = None
    include: str | None = None
    revision: str = "main"
    restart: bool = False
    inspect: bool = True
    policy: FetchPolicy = field(default_factory=FetchPolicy)


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What is there now.

    Attributes:
        repository: ``owner/name``.
        commit: The commit that was downloaded.
        files: Every chosen file, verified.
        models: The first file of each model among them, to be given to ``up``.
        fetched: Bytes that came over the network, as far as they were new.
        linked: Files that were in the hub's cache and are linked from there.
    """

    repository: str
    commit: str
    files: tuple[Path, ...]
    models: tuple[Path, ...]
    fetched: int
    linked: tuple[Path, ...]


def download(request: DownloadRequest, *, hub: Hub) -> Workflow[Downloaded]:
    """Download and verify the files of a model.

    What is there and verified stays, what is in the hub's cache is linked, the rest is fetched. A
    file has its final name only when its hash was found right.

    Raises:
        DownloadError: See the tree.
        ModelFileError: The headers tell that the engine cannot run the model.
        DiskFullError: Too little space, before or meanwhile; what has come is kept.
    """
    folder = Path(request.folder).expanduser().absolute()
    yield Started(f"Listing {request.repository}")
    listing = _listing(request, folder, hub)
    chosen = _chosen(request, folder, listing, hub)
    yield Finished(f"Listing {request.repository}", _summary(chosen, listing))
    places = _places(folder, listing, chosen)
    _require_room_for_names(places)
    with locked(places):
        missing, linked = yield from _settle(places, request, listing, hub)
        fetched = sum(_missing_bytes(place) for place in missing)
        if missing and hub.is_offline:
            names = ", ".join(place.published.path for place in missing[:3])
            reason = f"HF_HUB_OFFLINE is set and {len(missing)} files are not here: {names}"
            raise OfflineError(reason, where=request.repository)
        files.require_space(folder, fetched + _MARGIN if missing else 0)
        if missing:
            yield from _bring(places, missing, request, Addresses(hub, listing), hub)
        _require_one_set(places)
        if not hub.is_offline:
            keep_listing(folder, listing)
    return Downloaded(
        repository=listing.repository,
        commit=listing.commit,
        files=tuple(place.target for place in places),
        models=tuple(folder / first for first in first_shards(chosen)),
        fetched=fetched,
        linked=linked,
    )


def _bring(
    places: Sequence[Place],
    missing: Sequence[Place],
    request: DownloadRequest,
    addresses: Addresses,
    hub: Hub,
) -> Workflow[None]:
    """Fetch what is missing, unless its headers tell that it is of no use."""
    with RangeClient(
        token=hub.token,
        token_for=hub.endpoint,
        read_seconds=request.policy.silence,
        longest_wait=_LOOK_WAIT,
    ) as client:
        if request.inspect:
            yield from look_first(places, missing, addresses, client)
        yield from fetch_all(missing, addresses, client, policy=request.policy)


def _listing(request: DownloadRequest, folder: Path, hub: Hub) -> Listing:
    if not hub.is_offline:
        return hub.listing(request.repository, request.revision)
    listing = kept_listing(folder, request.repository, request.revision)
    listing = listing or hub.cached_listing(request.repository, request.revision)
    if listing is None:
        reason = f"HF_HUB_OFFLINE is set and nothing of revision {request.revision} is here"
        others = ", ".join(one.revision for one in kept_listings(folder, request.repository))
        hint = f"; there are: {others}" if others else ""
        raise OfflineError(reason + hint, where=request.repository)
    return listing


def _chosen(
    request: DownloadRequest, folder: Path, listing: Listing, hub: Hub
) -> tuple[PublishedFile, ...]:
    try:
        return choose(listing, quant=request.quant, include=request.include)
    except (FileChoiceError, ShardSetError) as error:
        if not hub.is_offline or kept_listing(folder, request.repository, request.revision):
            raise
        # The hub's cache tells what it has, not what the repository has.
        reason = f"HF_HUB_OFFLINE is set, and of what the hub's cache has: {error}"
        raise OfflineError(reason, where=request.repository) from error


def _require_room_for_names(places: Sequence[Place]) -> None:
    """Make sure that each file can be given its name once it is whole.

    Raises:
        LocalFileError: A folder has the name, or the parts are gathered on another disk.
    """
    for place in places:
        if place.target.is_dir():
            raise LocalFileError("is a folder, where a file is to be", path=str(place.target))
        if not files.is_same_disk(place.target.parent, place.folder):
            reason = f"lies on another disk than {place.folder}; name it with --dir"
            raise LocalFileError(reason, path=str(place.target.parent))


def _summary(chosen: Sequence[PublishedFile], listing: Listing) -> str:
    count = "one file" if len(chosen) == 1 else f"{len(chosen)} files"
    size = size_text(sum(file.size for file in chosen))
    return f"{count}, {size}, commit {listing.commit[:12]}"


def _places(folder: Path, listing: Listing, chosen: Sequence[PublishedFile]) -> list[Place]:
    for file in chosen:
        require_safe(file.path, repository=listing.repository)
    labels = _labels(chosen)
    return [
        Place(folder, file, listing.commit, label)
        for file, label in zip(chosen, labels, strict=True)
    ]


def _labels(chosen: Sequence[PublishedFile]) -> list[str]:
    """Name the shards of one set by their numbers: their names differ in the last digits only."""
    names = [file.path.rpartition("/")[2] for file in chosen]
    if len(names) > 1 and list(shard_names(names[0])) == names:
        return [f"shard {number} of {len(names)}" for number in range(1, len(names) + 1)]
    paths = [file.path for file in chosen]
    return names if len(set(names)) == len(names) else paths


def _settle(
    places: Sequence[Place], request: DownloadRequest, listing: Listing, hub: Hub
) -> Workflow[tuple[list[Place], tuple[Path, ...]]]:
    """Return the files that must be fetched and those that were linked."""
    missing: list[Place] = []
    linked: list[Path] = []
    for place in places:
        if (yield from _is_here(place, request)):
            continue
        if (yield from _link_cached(place, listing, hub)):
            linked.append(place.target)
            continue
        yield from _check_partial(place, request)
        missing.append(place)
    here = len(places) - len(missing) - len(linked)
    if here:
        yield Note(f"{here} of {len(places)} files are here and verified")
    return missing, tuple(linked)


def _is_here(place: Place, request: DownloadRequest) -> Workflow[bool]:
    if not place.target.exists():
        place.target.unlink(missing_ok=True)  # a link to nothing
        return False
    if place.is_verified():
        return True
    if place.target.stat().st_size == place.published.size:
        digest = yield from _hashed(place.target, place)
        if place.published.digest is None or digest == place.published.digest.value:
            place.note_verified()
            return True
    if request.restart:
        yield Warned(f"{place.target} is of another version and will be replaced")
        return False
    note = place.verified()
    ours = note.commit if note and note.commit != place.commit else None
    what = f"belongs to commit {ours}" if ours else "is not the published file"
    reason = f"{what}; {request.revision} is at {place.commit}"
    raise RevisionMovedError(reason, where=str(place.target), ours=ours)


def _link_cached(place: Place, listing: Listing, hub: Hub) -> Workflow[bool]:
    source = hub.cached(listing, place.published)
    if source is None or place.published.digest is None:
        return False
    digest = yield from _hashed(source, place)
    if digest != place.published.digest.value:
        yield Warned(f"{source} in the hub's cache is damaged and is not used")
        return False
    place.link(source)
    place.forget_partial()
    yield Note(f"{place.label}: linked from the hub's cache")
    return True


def _hashed(path: Path, place: Place) -> Workflow[str]:
    label = f"Checking {place.label}"
    yield Started(label)
    count = 0
    steps = hash_file(path, place.published)
    try:
        while True:
            count += next(steps)
            if count % _REPORT_BYTES == 0:
                yield Progress(label, count, place.published.size, Unit.BYTES)
    except StopIteration as end:
        yield Finished(label)
        return str(end.value)


def _check_partial(place: Place, request: DownloadRequest) -> Workflow[None]:
    note = read_note(place.partial)
    if note is None or not note.done or usable_spans(place.partial, place.published):
        return
    if (note.size, note.digest) == (place.published.size, str(place.published.digest or "")):
        return
    kept = size_text(Extents(note.done).count())
    if not request.restart:
        reason = (
            f"{kept} of commit {note.commit} are here; {request.revision} is now at"
            f" {place.commit}, where this file differs"
        )
        raise RevisionMovedError(reason, where=str(place.target), ours=note.commit)
    place.forget_partial()
    yield Warned(f"{place.label}: {kept} of another version were dropped")


def _missing_bytes(place: Place) -> int:
    there = Extents(usable_spans(place.partial, place.published)).count()
    return place.published.size - there


def _require_one_set(places: Sequence[Place]) -> None:
    """Make sure that each shard says of itself what its name says."""
    for place in places:
        names = shard_names(place.target.name)
        if len(names) < 2:
            continue
        try:
            with place.target.open("rb") as stream:
                header = read_header(stream, size=place.published.size, path=str(place.target))
        except ModelFileError:
            continue  # it is what was published; what is wrong with it is for others to say
        number, count = header.get("split.no"), header.get("split.count")
        if (number, count) != (names.index(place.target.name), len(names)):
            what = "no shard" if number is None else f"shard {number} (from 0) of {count}"
            reason = f"says of itself that it is {what}"
            raise ShardSetError(reason, where=str(place.target))
