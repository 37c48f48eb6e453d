"""Copying files to a host: a tar stream into a receiver that publishes by rename.

A stream into ``tar`` instead of SFTP: it is faster under paramiko, keeps modes and links, and the
receiver, which runs on the host, clears up even when the connection dies.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from ggufcluster.adapters.process import Limit, Process, Stream, chunks
from ggufcluster.core.command import Command, script
from ggufcluster.errors import DiskFullError, HostUnreachableError, RemoteCommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path, PurePosixPath

_ANSWER_SECONDS = 30.0
# After the last byte the receiver still has to flush to disk.
_FLUSH_SECONDS = 600.0
_CLEAN_UP_SECONDS = 15.0
_CHUNK_BYTES = 256 * 1024
_CONTENT = "content"
_END = "end"
_NO_SPACE = ("No space left on device", "Disk quota exceeded")

# $1 target, $2 bytes to come, $3 "file" or "tree". Answers "exists", "full" or "send"; a last line
# tells the free bytes. A stream cut at a member's border looks whole to tar, hence the end mark.
_RECEIVER = """
export LC_ALL=C
parent=$(dirname -- "$1")
part=
room() { stat -f -c '%a %S' -- "$parent" | { read -r count size; echo $((count * size)); }; }
leave() {
  if [ -n "$part" ]; then chmod -R u+rwX -- "$part"; rm -rf -- "$part"; fi
  if [ -d "$parent" ]; then echo "free $(room)"; fi
}
taken() { [ "$3" = tree ] && [ -e "$1" ]; }
trap leave EXIT
trap 'exit 1' HUP INT TERM PIPE
mkdir -p -- "$parent" || exit 1
if taken "$@"; then echo exists; exit 0; fi
if [ "$(room)" -lt "$2" ]; then echo full; exit 1; fi
part=$(mktemp -d -- "$1.partial-XXXXXXXX") || exit 1
echo send
tar -x -p -m -f - --no-same-owner -C "$part" || exit 1
[ -e "$part/end" ] || { echo "the stream ended early" >&2; exit 1; }
find "$part/content" -type f -exec sync -- {} + || exit 1
taken "$@" || mv -T -- "$part/content" "$1" || taken "$@"
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """One thing to copy.

    Attributes:
        source: File or folder here.
        target: Absolute path there.
        tree: Whether it is a folder.
        size: Bytes in its files.
        on_bytes: Told the bytes copied since the last call, before they are on the other disk.
    """

    source: Path
    target: PurePosixPath
    tree: bool
    size: int
    on_bytes: Callable[[int], None] | None

    def receiver(self) -> Command:
        """Return the command that takes the stream on the host."""
        kind = "tree" if self.tree else "file"
        return script(_RECEIVER, str(self.target), str(self.size), kind)

    def __str__(self) -> str:
        return f"copy of {self.source} to {self.target}"


def copy_file(source: Path, target: PurePosixPath, on_bytes: Callable[[int], None] | None) -> Copy:
    """Describe the copying of one file; a link stands for the file it leads to."""
    return Copy(source, target, tree=False, size=source.stat().st_size, on_bytes=on_bytes)


def copy_tree(source: Path, target: PurePosixPath, on_bytes: Callable[[int], None] | None) -> Copy:
    """Describe the copying of a folder; links stay links."""
    files = (path for path in source.rglob("*") if path.is_file() and not path.is_symlink())
    size = sum(path.stat().st_size for path in files)
    return Copy(source, target, tree=True, size=size, on_bytes=on_bytes)


def carry_out(copy: Copy, process: Process, *, host: str) -> None:
    """Send a copy to its receiver; on any error the receiver removes what it has.

    Raises:
        DiskFullError: There is, or was in the end, too little space.
        RemoteCommandError: The receiver failed otherwise.
        HostUnreachableError: The connection broke or took no data.
    """
    said = _Said(process)
    try:
        if said.answer() == "send":
            _send(copy, process, said)
        process.close_input()
        said.rest(_FLUSH_SECONDS)
    except TimeoutError:
        raise HostUnreachableError(host, reason=f"the {copy} made no progress") from None
    finally:
        # Input that ends without its end mark makes the receiver clear up; wait for that.
        with contextlib.suppress(OSError, HostUnreachableError):
            process.close_input()
            said.rest(_CLEAN_UP_SECONDS)
        if not said.over:
            process.end()
        process.close()
    _check(copy, said, host=host)


class _Said:
    """What the receiver has said so far."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._bytes = {stream: bytearray() for stream in Stream}
        self.exit_code: int | None = None

    @property
    def over(self) -> bool:
        return self.exit_code is not None

    @property
    def stdout(self) -> str:
        return self._bytes[Stream.STDOUT].decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self._bytes[Stream.STDERR].decode(errors="replace")

    @property
    def no_space(self) -> bool:
        return "full" in self.stdout.split() or any(text in self.stderr for text in _NO_SPACE)

    def free(self) -> int | None:
        words = self.stdout.split()
        numbers = [after for word, after in itertools.pairwise(words) if word == "free"]
        return int(numbers[-1]) if numbers and numbers[-1].isdigit() else None

    def answer(self) -> str:
        """Wait for the first line; empty if the receiver ended without one."""
        for chunk in chunks(self._process, Limit(_ANSWER_SECONDS)):
            self._bytes[chunk.stream] += chunk.data
            if "\n" in self.stdout:
                return self.stdout.partition("\n")[0]
        return ""

    def glance(self) -> None:
        """Take what is there without waiting."""
        chunk = self._process.read(0)
        if chunk is not None:
            self._bytes[chunk.stream] += chunk.data

    def rest(self, seconds: float) -> None:
        """Listen until the receiver is over."""
        if self.over:
            return
        for chunk in chunks(self._process, Limit(seconds)):
            self._bytes[chunk.stream] += chunk.data
        self.exit_code = self._process.exit_code()


class _ReceiverGoneError(Exception):
    """The receiver takes no more; it will say why."""


class _Pipe(io.RawIOBase):
    """The write end that tarfile sees."""

    def __init__(self, process: Process, said: _Said) -> None:
        super().__init__()
        self._process = process
        self._said = said

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return 0

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._said.glance()
        if self._said.no_space:
            raise _ReceiverGoneError
        try:
            self._process.write(data)
        except TimeoutError:
            raise
        except OSError:
            raise _ReceiverGoneError from None
        return len(data)


class _Counted:
    """A file that reports how much of it was read."""

    def __init__(self, file: BinaryIO, on_bytes: Callable[[int], None] | None) -> None:
        self._file = file
        self._on_bytes = on_bytes

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        if data and self._on_bytes is not None:
            self._on_bytes(len(data))
        return data


def _send(copy: Copy, process: Process, said: _Said) -> None:
    with (
        contextlib.suppress(_ReceiverGoneError),
        contextlib.closing(_Pipe(process, said)) as pipe,
        tarfile.TarFile(
            fileobj=cast("BinaryIO", pipe), mode="w", copybufsize=_CHUNK_BYTES
        ) as archive,
    ):
        for path, name in _members(copy):
            _add(archive, path, name, copy=copy)
        archive.addfile(tarfile.TarInfo(_END))


def _members(copy: Copy) -> Iterator[tuple[Path, str]]:
    yield copy.source, _CONTENT
    if copy.tree:
        for path in sorted(copy.source.rglob("*")):
            yield path, f"{_CONTENT}/{path.relative_to(copy.source)}"


def _add(archive: tarfile.TarFile, path: Path, name: str, *, copy: Copy) -> None:
    if path.is_file() and (not copy.tree or not path.is_symlink()):
        with path.open("rb") as file:
            info = _plain_info(archive, file, name)
            archive.addfile(info, cast("BinaryIO", _Counted(file, copy.on_bytes)))
    else:
        archive.addfile(archive.gettarinfo(path, arcname=name))


def _plain_info(archive: tarfile.TarFile, file: BinaryIO, name: str) -> tarfile.TarInfo:
    info = archive.gettarinfo(arcname=name, fileobj=file)
    # A second hard link to a file would become a link member without contents.
    info.type = tarfile.REGTYPE
    info.size = os.fstat(file.fileno()).st_size
    return info


def _check(copy: Copy, said: _Said, *, host: str) -> None:
    if said.exit_code == 0:
        return
    if said.no_space:
        raise DiskFullError(host, path=str(copy.target.parent), need=copy.size, free=said.free())
    raise RemoteCommandError(
        host, command=str(copy), exit_code=said.exit_code or 1, stderr=said.stderr
    )
