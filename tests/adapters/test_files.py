"""This machine's file system."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters import files
from ggufcluster.errors import DiskFullError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

# Larger than any process number, so that no process lives under it.
DEAD = 2**22 + 1


def keep_all(name: str) -> bool:
    """Want every file."""
    return bool(name)


def make_archive(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """Write a tar.gz with these members."""
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644) -> tarfile.TarInfo:
    """Describe one member of an archive."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = mode
    info.linkname = "/etc/passwd"
    return info


def extract(archive: Path, target: Path) -> list[str]:
    """Unpack what lies below ``top/tree`` and return the names."""
    list(files.extract_below(archive, "top/tree", target, keep=keep_all))
    return sorted(files.read_files(target))


def test_replaced_file_is_whole(tmp_path: Path) -> None:
    """The new content is there, and nothing else."""
    path = tmp_path / "folder" / "x.json"
    files.replace_file(path, b"old")
    files.replace_file(path, b"new")

    assert path.read_bytes() == b"new"
    assert [entry.name for entry in path.parent.iterdir()] == ["x.json"]


def test_broken_replacement_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails before the rename leaves the old content and no rest."""
    path = tmp_path / "x.json"
    files.replace_file(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.replace_file(path, b"new")

    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_full_disk_is_a_disk_full_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's "no space left" becomes an error with path and size."""

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFullError) as caught:
        files.replace_file(tmp_path / "x", b"1234")

    assert (caught.value.need, caught.value.path) == (4, str(tmp_path))


def test_space_is_checked_where_the_folder_will_be(tmp_path: Path) -> None:
    """A folder that is not there yet is measured at its nearest parent."""
    future = tmp_path / "a" / "b"
    files.require_space(future, 1)
    with pytest.raises(DiskFullError):
        files.require_space(future, files.free_bytes(future) * 2)


def test_lock_names_its_holder(tmp_path: Path) -> None:
    """Who finds the lock taken learns the process and its purpose."""
    first, second = files.FileLock(tmp_path / "lock"), files.FileLock(tmp_path / "lock")

    assert first.acquire("building") is None
    assert second.acquire("waiting") == f"process {os.getpid()} (building)"


def test_released_lock_is_free(tmp_path: Path) -> None:
    """After release the next one gets it; releasing twice does no harm."""
    first, second = files.FileLock(tmp_path / "lock"), files.FileLock(tmp_path / "lock")
    first.acquire("one")
    first.release()
    first.release()

    assert second.acquire("two") is None


def test_lock_ends_with_its_process(tmp_path: Path) -> None:
    """A process that dies with the lock does not keep it."""
    code = (
        "import os, sys; from pathlib import Path; from ggufcluster.adapters.files import FileLock;"
        "FileLock(Path(sys.argv[1])).acquire('dying'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "lock"], check=False)

    assert "dying" in (tmp_path / "lock").read_text()
    assert files.FileLock(tmp_path / "lock").acquire("next") is None


def test_stale_partials_are_removed_and_living_ones_kept(tmp_path: Path) -> None:
    """What a dead process left goes; what a living one prepares, and foreign names, stay."""
    mine = files.new_partial_folder(tmp_path / "tree")
    for name in (f".partial-tree-{DEAD}", ".partial-of-somebody-else", "tree"):
        (tmp_path / name).mkdir()
    (tmp_path / f".partial-x.json-{DEAD}").write_text("half")
    removed = files.remove_stale_partials(tmp_path)

    assert {path.name for path in removed} == {f".partial-tree-{DEAD}", f".partial-x.json-{DEAD}"}
    assert {path.name for path in tmp_path.iterdir()} == {
        mine.name,
        ".partial-of-somebody-else",
        "tree",
    }


def test_only_the_wanted_part_is_unpacked(tmp_path: Path) -> None:
    """Files beside the prefix are left out; the right to execute is kept, odd modes are not."""
    archive = make_archive(
        tmp_path / "a.tar.gz",
        (member("top/other/x"), b"no"),
        (member("top/tree/run.sh", mode=0o4777), b"yes"),
        (member("top/tree/sub/y"), b"yes"),
        (member("top/tree-not/z"), b"no"),
    )
    names = extract(archive, tmp_path / "out")

    assert names == ["run.sh", "sub/y"]
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    "bad",
    [
        member("top/tree/../../escape"),
        member("/top/tree/absolute"),
        member("top/tree/link", tarfile.SYMTYPE),
        member("top/tree/hard", tarfile.LNKTYPE),
        member("top/tree/pipe", tarfile.FIFOTYPE),
    ],
)
def test_dangerous_members_are_refused(tmp_path: Path, bad: tarfile.TarInfo) -> None:
    """Nothing is written outside the target, and no link or device is made."""
    archive = make_archive(tmp_path / "a.tar.gz", (bad, b""))
    with pytest.raises(SourceError):
        extract(archive, tmp_path / "deep" / "out")

    assert not (tmp_path / "deep").exists()


def test_damaged_archive_is_a_source_error(tmp_path: Path) -> None:
    """A cut archive is reported with its place."""
    archive = make_archive(tmp_path / "a.tar.gz", (member("top/tree/x"), os.urandom(5000)))
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(SourceError, match=r"a\.tar\.gz"):
        extract(archive, tmp_path / "out")


def test_packed_folder_comes_back_and_packs_equally(tmp_path: Path) -> None:
    """Packing keeps contents and does not depend on time or owner."""
    folder = tmp_path / "tree"
    files.write_files(folder, {"a.txt": b"1", "sub/b.txt": b"2"})
    files.pack_folder(folder, tmp_path / "one.tar.gz")
    os.utime(folder / "a.txt", (0, 0))
    files.pack_folder(folder, tmp_path / "two.tar.gz")
    with tarfile.open(tmp_path / "one.tar.gz") as tar:
        names = tar.getnames()

    assert names == ["a.txt", "sub/b.txt"]
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()


def test_written_files_replace_nothing(tmp_path: Path) -> None:
    """A name that is taken is an error, not an overwrite."""
    files.write_files(tmp_path, {"a": b"1"})
    with pytest.raises(FileExistsError):
        files.write_files(tmp_path, {"a": b"2"})

    assert (tmp_path / "a").read_bytes() == b"1"


def test_copied_files_are_the_wanted_ones(tmp_path: Path) -> None:
    """Only files that are wanted are copied, in their folders."""
    files.write_files(tmp_path / "from", {"src/a.c": b"1", "docs/b": b"2", ".git/config": b"3"})
    files.copy_files(tmp_path / "from", tmp_path / "to", lambda name: name.startswith("src/"))

    assert files.read_files(tmp_path / "to") == {"src/a.c": b"1"}
