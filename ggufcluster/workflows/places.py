"""Where a downloaded file and the notes about it lie, and whether what lies there is verified."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from ggufcluster.adapters import files
from ggufcluster.adapters.partial_file import note_path
from ggufcluster.core.download.notes import (
    VerifiedNote,
    listing_to_json,
    read_listing,
    read_verified,
)
from ggufcluster.errors import DownloadBusyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ggufcluster.core.download.listing import Listing, PublishedFile

_NOTES = ".ggufcluster"
_LISTING = ".listing"
_COMMIT = re.compile(r"[0-9a-f]{7,40}$")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one published file goes.

    Attributes:
        folder: The folder of the download.
        published: The file.
        commit: Its commit.
        label: What it is called in progress displays.
    """

    folder: Path
    published: PublishedFile
    commit: str
    label: str

    @property
    def target(self) -> Path:
        """The final name."""
        return self.folder / self.published.path

    @property
    def partial(self) -> Path:
        """The file while it grows; on the same file system, so that it can be renamed."""
        return self._beside(".partial")

    @property
    def wrong(self) -> Path:
        """Where bytes go that are not the published ones."""
        return self._beside(".wrong")

    @property
    def lock(self) -> Path:
        """The lock against a second download of the same file."""
        return self._beside(".lock")

    def verified(self) -> VerifiedNote | None:
        """Return what is known of the finished file; None if it changed since or is not there."""
        with suppress(OSError):
            note = read_verified(self._beside(".verified").read_bytes())
            found = self.target.stat()
            if note and (note.size, note.changed_ns) == (found.st_size, found.st_mtime_ns):
                return note
        return None

    def is_verified(self) -> bool:
        """Whether the finished file is there and is the published one."""
        note = self.verified()
        wanted = (self.published.size, str(self.published.digest or ""))
        return note is not None and (note.size, note.digest) == wanted

    def note_verified(self) -> None:
        """Write down that the finished file was found to be the published one."""
        found = self.target.stat()
        digest = str(self.published.digest or "")
        note = VerifiedNote(self.commit, found.st_size, digest, found.st_mtime_ns)
        files.replace_file(self._beside(".verified"), note.to_json())

    def publish(self) -> None:
        """Give the whole, verified file its final name."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        files.publish(self.partial, self.target)
        self.note_verified()
        note_path(self.partial).unlink(missing_ok=True)

    def link(self, source: Path) -> None:
        """Give a verified file that lies elsewhere the final name as well, without a copy."""
        temporary = self._beside(".link")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:  # another file system
            temporary.symlink_to(source)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        files.publish(temporary, self.target)
        self.note_verified()

    def forget_partial(self) -> None:
        """Remove an unfinished file and its note."""
        self.partial.unlink(missing_ok=True)
        note_path(self.partial).unlink(missing_ok=True)

    def _beside(self, suffix: str) -> Path:
        return self.folder / _NOTES / f"{self.published.path}{suffix}"


@contextmanager
def locked(places: Iterable[Place]) -> Iterator[None]:
    """Hold the locks of all files.

    Raises:
        DownloadBusyError: Another process holds one.
    """
    with ExitStack() as stack:
        for place in places:
            lock = files.FileLock(place.lock)
            holder = lock.acquire("ggufcluster download")
            if holder:
                raise DownloadBusyError(f"is in use by {holder}", where=str(place.target))
            stack.callback(lock.release)
        yield


def keep_listing(folder: Path, listing: Listing) -> None:
    """Write a listing down, for when the network is off."""
    path = _listing_path(folder, listing.repository, listing.revision)
    files.replace_file(path, listing_to_json(listing))


def kept_listing(folder: Path, repository: str, revision: str) -> Listing | None:
    """Return the listing that was written down last; None if there is none.

    A commit is also known by its first digits, whatever the name was that it was fetched by.
    """
    with suppress(OSError):
        return read_listing(_listing_path(folder, repository, revision).read_bytes())
    if not _COMMIT.match(revision):
        return None
    known = kept_listings(folder, repository)
    return next((one for one in known if one.commit.startswith(revision)), None)


def kept_listings(folder: Path, repository: str) -> list[Listing]:
    """Return what was written down of a repository, by name of the revision."""
    pattern = f"{quote(f'{repository}@', safe='')}*{_LISTING}"
    found = [read_listing(path.read_bytes()) for path in sorted((folder / _NOTES).glob(pattern))]
    return [listing for listing in found if listing is not None]


def _listing_path(folder: Path, repository: str, revision: str) -> Path:
    return folder / _NOTES / f"{quote(f'{repository}@{revision}', safe='')}{_LISTING}"
