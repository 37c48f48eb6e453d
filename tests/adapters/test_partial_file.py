"""Files that grow, what of them is safe, and their hashes."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.partial_file import (
    PartialFile,
    PrefixHash,
    hash_file,
    note_path,
    read_note,
    usable_spans,
)
from ggufcluster.core.download.listing import Digest, PublishedFile
from ggufcluster.errors import DiskFullError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = bytes(range(250)) * 4
PUBLISHED = PublishedFile("m.gguf", len(DATA), Digest("sha256", hashlib.sha256(DATA).hexdigest()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the file grows."""
    return tmp_path / "sub" / "m.gguf.partial"


@pytest.fixture
def partial(path: Path) -> Iterator[PartialFile]:
    """A new unfinished file."""
    opened = PartialFile(path, PUBLISHED, commit="c")
    yield opened
    opened.close()


def put(partial: PartialFile, start: int, end: int) -> None:
    """Write the right bytes."""
    partial.write(start, memoryview(DATA)[start:end])


def test_only_what_was_noted_is_there_next_time(partial: PartialFile, path: Path) -> None:
    """Bytes written after the last checkpoint count as missing for the next process."""
    put(partial, 500, 600)
    partial.checkpoint()
    put(partial, 0, 100)
    assert (partial.done, partial.prefix, partial.gaps) == (200, 100, [(100, 500), (600, 1000)])
    again = PartialFile(path, PUBLISHED, commit="d")
    assert again.gaps == [(0, 500), (600, 1000)]
    again.close()


def test_the_data_is_on_disk_before_the_note(
    partial: PartialFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note never promises what was not flushed."""
    noted_at_flush = []
    real = os.fdatasync

    def flush(descriptor: int) -> None:
        noted_at_flush.append(read_note(path))
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", flush)
    put(partial, 0, 10)
    partial.checkpoint()
    assert noted_at_flush == [None]
    note = read_note(path)
    assert note is not None
    assert note.done == ((0, 10),)


@pytest.mark.parametrize(
    "other",
    [
        PublishedFile("m.gguf", 999, PUBLISHED.digest),
        PublishedFile("m.gguf", 1000, Digest("sha256", "0" * 64)),
        PublishedFile("m.gguf", 1000, None),
    ],
)
def test_bytes_of_another_file_are_not_used(
    partial: PartialFile, path: Path, other: PublishedFile
) -> None:
    """Size and hash must both be those of the note."""
    put(partial, 0, 10)
    partial.checkpoint()
    assert usable_spans(path, PUBLISHED) == ((0, 10),)
    assert usable_spans(path, other) == ()


def test_a_file_shorter_than_its_note_is_not_trusted(partial: PartialFile, path: Path) -> None:
    """If the data was cut or removed, nothing of it counts."""
    put(partial, 0, 600)
    partial.checkpoint()
    os.truncate(path, 599)
    assert usable_spans(path, PUBLISHED) == ()
    path.unlink()
    assert usable_spans(path, PUBLISHED) == ()


def test_the_hash_follows_the_beginning(partial: PartialFile) -> None:
    """It takes what is there without a gap, in whatever order it came, and ends as the file's."""
    growing = PrefixHash(partial)
    put(partial, 300, 700)
    assert not growing.advance()
    put(partial, 0, 300)
    assert growing.advance()
    assert (growing.position, growing.is_complete) == (700, False)
    put(partial, 700, 1000)
    while growing.advance():
        pass
    assert growing.is_complete
    assert PUBLISHED.digest
    assert growing.hexdigest() == PUBLISHED.digest.value


def test_a_sealed_file_keeps_its_note_until_it_has_its_name(
    partial: PartialFile, path: Path
) -> None:
    """A power cut between the last byte and the final name costs nothing."""
    put(partial, 0, 1000)
    partial.checkpoint()
    partial.seal()
    assert usable_spans(path, PUBLISHED) == ((0, 1000),)
    note_path(path).unlink()
    partial.checkpoint()
    assert not note_path(path).exists()


def test_what_was_set_aside_is_kept(partial: PartialFile, path: Path, tmp_path: Path) -> None:
    """Wrong bytes stay readable under another name, and the file begins anew, empty."""
    put(partial, 0, 1000)
    partial.checkpoint()
    partial.set_aside(tmp_path / "wrong")
    assert (tmp_path / "wrong").read_bytes() == DATA
    assert partial.gaps == [(0, 1000)]
    put(partial, 0, 1)
    assert path.read_bytes() == DATA[:1] + bytes(999)


@pytest.mark.parametrize("code", [28, 122])
def test_no_space_is_told_as_such(
    partial: PartialFile, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A full disk and a quota, met while writing or flushing, are the same error."""

    def full(*_arguments: object) -> int:
        raise OSError(code, "x")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskFullError):
            put(partial, 0, 10)
    put(partial, 0, 10)
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(DiskFullError):
        partial.checkpoint()


def test_gits_own_hash_covers_the_size(tmp_path: Path) -> None:
    """A small file of git is hashed with git's header before it."""
    (tmp_path / "f").write_bytes(b"hello\n")
    digest = Digest("git-sha1", "ce013625030ba8dba906f756967f9e9ca394464a")
    steps = hash_file(tmp_path / "f", PublishedFile("f", 6, digest))
    assert next(steps) == 6
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == digest.value
