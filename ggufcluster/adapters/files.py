"""This machine's file system: replace, lock, measure, pack and unpack."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.errors import DiskFullError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_CHUNK = 1 << 20
_HERE = "this machine"
_PARTIAL = ".partial-"


class FileLock:
    """An exclusive lock between processes; the file names its holder.

    The kernel drops it with its process, so that a crash leaves no lock behind.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire(self, purpose: str) -> str | None:
        """Try once to take the lock; return None if it is ours, else who holds it.

        Args:
            purpose: What for, shown to those who wait.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with os.fdopen(descriptor) as file:
                return file.read() or "an unnamed process"
        except OSError as error:
            os.close(descriptor)
            error.filename = str(self._path)
            raise
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} ({purpose})".encode())
        self._descriptor = descriptor
        return None

    def release(self) -> None:
        """Drop the lock; safe to call without holding it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and have it on disk on return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with disk_full_as_error(path.parent, need=len(content)), _temporary(path) as temporary:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path)


def publish(temporary: Path, target: Path) -> None:
    """Give a finished file or folder its name in one step, and have the name on disk."""
    temporary.rename(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Have a folder's entries on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def new_partial_folder(target: Path) -> Path:
    """Make a folder beside `target` to prepare it in; `remove_stale_partials` knows its name."""
    partial = _partial(target)
    remove_tree(partial)
    partial.mkdir(parents=True)
    return partial


def remove_stale_partials(folder: Path) -> tuple[Path, ...]:
    """Remove what processes that no longer live left unfinished; return what."""
    stale = tuple(path for path in folder.glob(f"{_PARTIAL}*") if not _is_owned(path))
    for path in stale:
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)
    return stale


def remove_tree(folder: Path) -> None:
    """Remove a folder if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def read_chunks(path: Path) -> Iterator[bytes]:
    """Read a file in pieces of 1 MiB."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def free_bytes(path: Path) -> int:
    """Return the free space where `path` is or would be."""
    return shutil.disk_usage(_existing(path)).free


def is_same_disk(one: Path, other: Path) -> bool:
    """Tell whether two folders are or would be on one file system, so that files can be renamed."""
    return _existing(one).stat().st_dev == _existing(other).stat().st_dev


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def require_space(path: Path, need: int) -> None:
    """Make sure that `need` bytes fit.

    Raises:
        DiskFullError: They do not.
    """
    free = free_bytes(path)
    if free < need:
        raise DiskFullError(_HERE, path=str(path), need=need, free=free)


@contextlib.contextmanager
def disk_full_as_error(path: Path, *, need: int) -> Iterator[None]:
    """Turn the system's "no space left" into a `DiskFullError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(_HERE, path=str(path), need=need, free=free_bytes(path)) from error


def read_files(folder: Path, keep: Callable[[str], bool] = bool) -> dict[str, bytes]:
    """Read all files under a folder whose relative path `keep` wants."""
    return {name: (folder / name).read_bytes() for name in _file_names(folder) if keep(name)}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files under a folder that hold none of these names yet.

    Raises:
        FileExistsError: One is there already.
    """
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)


def copy_files(source: Path, target: Path, keep: Callable[[str], bool]) -> None:
    """Copy the wanted files of one folder to another, with their modes."""
    for name in _file_names(source):
        if keep(name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def extract_below(
    archive: Path, prefix: str, target: Path, *, keep: Callable[[str], bool]
) -> Iterator[int]:
    """Unpack the wanted regular files below `prefix` of a tar archive.

    Names that leave the folder, links and devices are refused; owners and odd modes are not taken
    over.

    Yields:
        How many files are written so far.

    Raises:
        SourceError: The archive is damaged or holds something refused.
    """
    try:
        with tarfile.open(archive) as tar:
            for count, (name, member) in enumerate(_wanted(tar, prefix, keep), start=1):
                _extract(tar, member, target / name)
                yield count
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise SourceError(f"the archive is damaged: {error}", location=str(archive)) from error


def pack_folder(folder: Path, archive: Path) -> None:
    """Pack a folder's contents into a tar.gz, whole or not at all; equal contents pack equally."""
    with (
        disk_full_as_error(archive.parent, need=_CHUNK),
        _temporary(archive) as temporary,
    ):
        with (
            temporary.open("wb") as raw,
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w") as tar,
        ):
            for name in _file_names(folder):
                tar.add(folder / name, arcname=name, filter=_anonymous)
        publish(temporary, archive)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 1  # not 0, which some build tools take for a missing file
    return member


def _wanted(
    tar: tarfile.TarFile, prefix: str, keep: Callable[[str], bool]
) -> Iterator[tuple[str, tarfile.TarInfo]]:
    root = prefix.rstrip("/") + "/"
    for member in tar:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise SourceError(f"it holds {member.name!r}, which leaves it", location=str(tar.name))
        if member.isdir() or not member.name.startswith(root):
            continue
        if not keep(name := member.name.removeprefix(root)):
            continue
        if not member.isfile():
            raise SourceError(f"{member.name!r} is no regular file", location=str(tar.name))
        yield name, member


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = tar.extractfile(member)
    assert content is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    with content, path.open("xb") as file:
        shutil.copyfileobj(content, file)
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _file_names(folder: Path) -> Iterable[str]:
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    temporary = _partial(path)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _partial(target: Path) -> Path:
    # The process is part of the name: whether it lives tells whether this is in use.
    return target.with_name(f"{_PARTIAL}{target.name}-{os.getpid()}")


def _is_owned(path: Path) -> bool:
    pid = path.name.rpartition("-")[2]
    return not pid.isdigit() or Path("/proc", pid).exists()
