"""Send the files of a model to another host: once, resumable, verified.

A layer split does not need them there, as workers get their tensors from the head. With a copy a
worker can take the head's place, and the hub is asked once for all machines.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.model_copy import (
    PART,
    FarFile,
    append_command,
    discard_command,
    hash_command,
    look_command,
    parse_look,
    publish_command,
    was_moved,
)
from ggufcluster.core.units import MIB
from ggufcluster.core.worker_address import LocalWorkers, parse_worker
from ggufcluster.errors import CopyDiffersError, DiskFullError, HostError, RemoteCommandError
from ggufcluster.workflows.events import Finished, Note, Progress, Started, Unit, Workflow
from ggufcluster.workflows.machines import survey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path, PurePosixPath

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.workflows.seams import Seams

CHUNK_BYTES = 32 * MIB
_MARGIN = 64 * MIB
_SHORT = 60.0
# A slow disk reads or takes this much a second at least; what takes longer hangs.
_LEAST_RATE = 5 * MIB
_NO_SPACE = ("No space left on device", "Disk quota exceeded")


@dataclass(frozen=True, slots=True)
class Copied:
    """One file that is on a host now, verified.

    Attributes:
        path: Where it lies there.
        sha256: Its hash, equal on both sides.
        sent: Bytes that this run sent.
    """

    path: PurePosixPath
    sha256: str
    sent: int


def send_to_workers(
    seams: Seams, workers: Sequence[str], files: Sequence[Path], *, root: Path, below: str
) -> Workflow[dict[str, tuple[Copied, ...]]]:
    """Send files to the models' folder of every worker on another machine.

    Args:
        seams: The outside worlds.
        workers: As written after ``--worker``; those beside the head need no copy.
        files: Files below `root`.
        root: Folder on this machine that corresponds to `below` there.
        below: Folder below the worker's folder of models.

    Raises:
        HostError: A host cannot be reached, has too little space, or holds another file there.
    """
    done: dict[str, tuple[Copied, ...]] = {}
    wanted = [parse_worker(text) for text in workers]
    if beside := [str(address) for address in wanted if isinstance(address, LocalWorkers)]:
        yield Note(f"nothing sent to {', '.join(beside)}: on this machine the files are here")
    for address in wanted:
        if isinstance(address, LocalWorkers):
            continue
        machine = survey(seams.connect(address))
        folder = machine.paths.models / below
        named = [(path, path.relative_to(root).as_posix()) for path in files]
        done[address.host] = yield from send_files(machine.remote, named, folder=folder)
    return done


def send_files(
    remote: Remote, files: Sequence[tuple[Path, str]], *, folder: PurePosixPath
) -> Workflow[tuple[Copied, ...]]:
    """Send files, each with its name below `folder`; what is there already is only verified.

    Raises:
        CopyDiffersError: Another file has the name, the part is being written by somebody else,
            or what arrived is not what was sent.
        DiskFullError: The host has too little space; what was sent stays for the next run.
        HostError: The connection broke; the next run goes on where it did.
    """
    found = [_look(remote, folder, name) for _, name in files]
    _check_space(remote, folder, files, found)
    done = []
    for (path, name), there in zip(files, found, strict=True):
        target = folder / name
        if there.size is not None:
            done.append((yield from _verify(remote, path, target)))
        else:
            done.append((yield from _send(remote, path, target, there.part)))
    return tuple(done)


def _look(remote: Remote, folder: PurePosixPath, name: str) -> FarFile:
    return parse_look(remote.run(look_command(folder, name), timeout=_SHORT).stdout)


def _check_space(
    remote: Remote,
    folder: PurePosixPath,
    files: Sequence[tuple[Path, str]],
    found: Sequence[FarFile],
) -> None:
    need = sum(
        max(0, path.stat().st_size - there.part)
        for (path, _), there in zip(files, found, strict=True)
        if there.size is None
    )
    free = min((there.free for there in found), default=0)
    if need and need + _MARGIN > free:
        raise DiskFullError(remote.name, path=str(folder), need=need, free=free)


def _verify(remote: Remote, path: Path, target: PurePosixPath) -> Workflow[Copied]:
    label = f"Verifying {path.name} on {remote.name}"
    yield Started(label)
    theirs = _far_hash(remote, target, path.stat().st_size)
    ours = hashlib.sha256()
    for done, data in _chunks(path, 0):
        ours.update(data)
        yield Progress(label, done + len(data), path.stat().st_size, Unit.BYTES)
    if theirs != ours.hexdigest():
        raise CopyDiffersError(remote.name, path=str(target), reason="is another file than here")
    yield Finished(label, "was there already")
    return Copied(target, theirs, sent=0)


def _send(remote: Remote, path: Path, target: PurePosixPath, have: int) -> Workflow[Copied]:
    label = f"Sending {path.name} to {remote.name}"
    part = target.with_name(target.name + PART)
    size = path.stat().st_size
    yield Started(label)
    if have > size:
        remote.run(discard_command(part), timeout=_SHORT)
        have = 0
    if have:
        yield Note(f"{path.name}: {have:,} bytes are on {remote.name} from an earlier run")
    ours = hashlib.sha256()
    for offset, data in _chunks(path, 0, until=have):
        ours.update(data)
        yield Progress(label, offset + len(data), size, Unit.BYTES)
    for offset, data in _chunks(path, have):
        try:
            _append(remote, part, offset, data)
        except HostError as error:
            if not isinstance(error, CopyDiffersError):
                error.add_note("what has arrived there stays; repeated, it goes on")
            raise
        ours.update(data)
        yield Progress(label, offset + len(data), size, Unit.BYTES)
    if not size:
        _append(remote, part, 0, b"")
    yield Finished(label)
    checking = f"Verifying {path.name} on {remote.name}"
    yield Started(checking)
    _publish(remote, part, target, size=size, sha256=ours.hexdigest())
    yield Finished(checking)
    return Copied(target, ours.hexdigest(), sent=size - have)


def _append(remote: Remote, part: PurePosixPath, offset: int, data: bytes) -> None:
    timeout = _SHORT + len(data) / _LEAST_RATE
    try:
        answer = remote.run(append_command(part, offset, data), timeout=timeout)
    except RemoteCommandError as error:
        if not any(words in error.stderr for words in _NO_SPACE):
            raise
        need = len(data)
        raise DiskFullError(remote.name, path=str(part), need=need, free=None) from error
    if was_moved(answer.stdout):
        reason = "changed meanwhile: somebody else sends it, too"
        raise CopyDiffersError(remote.name, path=str(part), reason=reason)


def _publish(
    remote: Remote, part: PurePosixPath, target: PurePosixPath, *, size: int, sha256: str
) -> None:
    theirs = _far_hash(remote, part, size)
    if theirs != sha256:
        remote.run(discard_command(part), timeout=_SHORT)
        reason = f"arrived with SHA-256 {theirs} instead of {sha256} and was removed"
        raise CopyDiffersError(remote.name, path=str(target), reason=reason)
    timeout = _SHORT + size / _LEAST_RATE
    if remote.run(publish_command(part, target), timeout=timeout, check=False).exit_code:
        reason = "could not get its name: another file has it now"
        raise CopyDiffersError(remote.name, path=str(target), reason=reason)


def _far_hash(remote: Remote, path: PurePosixPath, size: int) -> str:
    answer = remote.run(hash_command(path), timeout=_SHORT + size / _LEAST_RATE)
    return answer.stdout.strip()


def _chunks(path: Path, start: int, *, until: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield offset and bytes of a local file, piece by piece."""
    with path.open("rb") as stream:
        stream.seek(start)
        offset = start
        while True:
            room = CHUNK_BYTES if until is None else min(CHUNK_BYTES, until - offset)
            data = stream.read(room) if room > 0 else b""
            if not data:
                return
            yield offset, data
            offset += len(data)
