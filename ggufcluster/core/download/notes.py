"""What is written down beside a download, as JSON: what is there and what is verified."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggufcluster.core.download.extents import Extents
from ggufcluster.core.download.listing import Digest, Listing, PublishedFile

if TYPE_CHECKING:
    from ggufcluster.core.download.extents import Span

_VERSION = 1


@dataclass(frozen=True, slots=True)
class PartialNote:
    """Which bytes of an unfinished file are safe on disk, and of which file they are."""

    commit: str
    size: int
    digest: str
    done: tuple[Span, ...]

    def to_json(self) -> bytes:
        """Write the note."""
        return _dump(
            commit=self.commit,
            size=self.size,
            digest=self.digest,
            done=[list(s) for s in self.done],
        )


@dataclass(frozen=True, slots=True)
class VerifiedNote:
    """Which published file a finished one was found to be; `changed_ns` is its time of change."""

    commit: str
    size: int
    digest: str
    changed_ns: int

    def to_json(self) -> bytes:
        """Write the note."""
        return _dump(
            commit=self.commit, size=self.size, digest=self.digest, changed_ns=self.changed_ns
        )


def read_partial(data: bytes) -> PartialNote | None:
    """Read a note; None if it is damaged, of another version or contradicts itself."""
    try:
        found = _load(data)
        done = tuple((int(start), int(end)) for start, end in found["done"])
        note = PartialNote(str(found["commit"]), int(found["size"]), str(found["digest"]), done)
    except (ValueError, LookupError, TypeError):
        return None
    inside = all(0 <= start < end <= note.size for start, end in done)
    return note if inside and list(Extents(done)) == list(done) else None


def read_verified(data: bytes) -> VerifiedNote | None:
    """Read a note; None if it is damaged or of another version."""
    try:
        found = _load(data)
        return VerifiedNote(
            str(found["commit"]),
            int(found["size"]),
            str(found["digest"]),
            int(found["changed_ns"]),
        )
    except (ValueError, LookupError, TypeError):
        return None


def listing_to_json(listing: Listing) -> bytes:
    """Write a listing, for when the network is off."""
    return _dump(
        repository=listing.repository,
        revision=listing.revision,
        commit=listing.commit,
        files=[[f.path, f.size, str(f.digest) if f.digest else None] for f in listing.files],
    )


def read_listing(data: bytes) -> Listing | None:
    """Read a listing; None if it is damaged or of another version."""
    try:
        found = _load(data)
        files = tuple(
            PublishedFile(str(path), int(size), Digest.parse(digest) if digest else None)
            for path, size, digest in found["files"]
        )
        return Listing(
            str(found["repository"]), str(found["revision"]), str(found["commit"]), files
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _dump(**fields: Any) -> bytes:
    return json.dumps({"version": _VERSION, **fields}).encode()


def _load(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if found["version"] != _VERSION:
        raise ValueError("another version")
    return dict(found)
