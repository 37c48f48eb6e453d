"""A file that is being downloaded: its bytes, what of them is safe on disk, and its hash."""

from __future__ import annotations

import hashlib
import os
import threading
from typing import TYPE_CHECKING

from ggufcluster.adapters.files import disk_full_as_error, replace_file
from ggufcluster.core.download.extents import Extents
from ggufcluster.core.download.notes import PartialNote, read_partial

if TYPE_CHECKING:
    from collections.abc import Generator
    from hashlib import _Hash
    from pathlib import Path

    from ggufcluster.core.download.listing import Digest, PublishedFile

_BLOCK = 4 << 20


class PartialFile:
    """One unfinished file beside a note of the bytes that are safe; usable from many threads.

    The note is written after the data is on disk: what it names survives a power cut, and what it
    does not name is fetched again.

    Args:
        path: Where the data goes; the note lies beside it.
        published: What the file will be.
        commit: The commit it belongs to.
    """

    def __init__(self, path: Path, published: PublishedFile, *, commit: str) -> None:
        self.path = path
        self.published = published
        self._commit = commit
        self._note = note_path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._is_sealed = False
        self._open()

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The spans that are missing."""
        with self._lock:
            return self._there.gaps(self.published.size)

    @property
    def done(self) -> int:
        """How many bytes are there."""
        with self._lock:
            return self._there.count()

    @property
    def kept(self) -> int:
        """How many bytes the next run will find: those that the note names."""
        if self._is_sealed:
            return self.published.size
        return Extents(usable_spans(self.path, self.published)).count()

    @property
    def prefix(self) -> int:
        """How many bytes are there from the beginning without a gap."""
        with self._lock:
            return self._there.prefix()

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes at their place; raises `DiskFullError`."""
        with disk_full_as_error(self.path.parent, need=len(data)):
            position = offset
            while data:
                count = os.pwrite(self._descriptor, data, position)
                data, position = data[count:], position + count
        with self._lock:
            self._there.add(offset, position)

    def checkpoint(self) -> None:
        """Have everything written so far on disk, then the note; raises `DiskFullError`."""
        with self._saving:
            if self._is_sealed:
                return
            with self._lock:
                there = self._there.copy()
            self._sync()
            digest = str(self.published.digest or "")
            note = PartialNote(self._commit, self.published.size, digest, tuple(there))
            replace_file(self._note, note.to_json())

    def seal(self) -> None:
        """Have the whole file on disk; nothing is written here any more."""
        with self._saving:
            self._is_sealed = True
            self._sync()

    def read(self, offset: int, buffer: memoryview) -> int:
        """Read bytes that were written; return how many."""
        return os.preadv(self._descriptor, [buffer], offset)

    def restart(self) -> None:
        """Forget every byte."""
        with self._saving, self._lock:
            self._there = Extents()
            self._note.unlink(missing_ok=True)

    def set_aside(self, target: Path) -> None:
        """Rename the file, to be looked at, and begin an empty one in its place."""
        with self._saving, self._lock:
            self.path.rename(target)
            self._note.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._open()

    def _open(self) -> None:
        self._there = Extents(usable_spans(self.path, self.published))
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._descriptor, self.published.size)

    def _sync(self) -> None:
        with disk_full_as_error(self.path.parent, need=_BLOCK):
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Close the file; what was not written down in the note is fetched again next time."""
        os.close(self._descriptor)


class PrefixHash:
    """The hash of a file that grows from its beginning.

    Bytes are read back just after they were written, from memory: no second pass over the file.
    """

    def __init__(self, file: PartialFile) -> None:
        self._file = file
        self._buffer = memoryview(bytearray(_BLOCK))
        self._digest = new_hash(file.published.digest, file.published.size)
        self._lock = threading.Lock()
        self.position = 0

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are hashed."""
        return self.position == self._file.published.size

    def advance(self) -> bool:
        """Hash the next bytes without a gap, a few MiB at most; False if there are none yet."""
        with self._lock:
            count = min(self._file.prefix - self.position, _BLOCK)
            if count <= 0:
                return False
            count = self._file.read(self.position, self._buffer[:count])
            if not count:
                raise OSError(f"{self._file.path} became shorter")
            self._digest.update(self._buffer[:count])
            self.position += count
            return True

    def restart(self) -> None:
        """Begin anew."""
        with self._lock:
            self._digest = new_hash(self._file.published.digest, self._file.published.size)
            self.position = 0

    def hexdigest(self) -> str:
        """Return the hash of what was read so far."""
        return self._digest.hexdigest()


def new_hash(digest: Digest | None, size: int) -> _Hash:
    """Begin a hash of the published kind; git's covers a header with the size as well."""
    if digest is not None and digest.kind == "git-sha1":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.sha256()


def hash_file(path: Path, published: PublishedFile) -> Generator[int, None, str]:
    """Yield how many bytes were read, again and again, then return the hash in hex.

    It is of the kind that is published for the file.
    """
    digest = new_hash(published.digest, path.stat().st_size)
    buffer = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            yield count
    return digest.hexdigest()


def note_path(partial: Path) -> Path:
    """Return where the note of an unfinished file lies."""
    return partial.with_name(partial.name + ".json")


def read_note(partial: Path) -> PartialNote | None:
    """Return the note of an unfinished file; None if there is none that can be trusted."""
    try:
        return read_partial(note_path(partial).read_bytes())
    except FileNotFoundError:
        return None


def usable_spans(partial: Path, published: PublishedFile) -> tuple[tuple[int, int], ...]:
    """Return what an unfinished file holds of a published one, as far as it can be trusted."""
    note = read_note(partial)
    if note is None or not partial.is_file():
        return ()
    same = note.size == published.size and note.digest == str(published.digest or "")
    size = partial.stat().st_size
    # A note that promises more than the file has is of another file.
    return note.done if same and all(end <= size for _, end in note.done) else ()
