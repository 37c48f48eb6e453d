"""Get the pinned source, check it, and prepare the patched tree."""

from __future__ import annotations

import hashlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster import resources
from ggufcluster.adapters import files
from ggufcluster.core.build_id import Pin, fingerprint, parse_pin
from ggufcluster.core.command import Command
from ggufcluster.core.patches import (
    Patch,
    explain_failure,
    parse_patch,
    parse_series,
    shifted_hunks,
)
from ggufcluster.core.source_tree import SELECTION, is_needed
from ggufcluster.errors import PatchError, RemoteCommandError, SourceError
from ggufcluster.workflows.events import Finished, Note, Progress, Started, Unit, Warned, Workflow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.paths import HostPaths

STAMP = ".ggufcluster-fingerprint"
_DOWNLOAD_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Vendor:
    """What this package brings along for llama.cpp."""

    pin: Pin
    series: tuple[Patch, ...]
    overlay: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Source:
    """A source before patching.

    Attributes:
        origin: Its identity in the fingerprint.
        pinned: It is the pinned one, checked or about to be.
        archive: The source archive to use; None means the pinned one, from cache or index.
        folder: A llama.cpp tree to use instead of an archive.
    """

    origin: str
    pinned: bool
    archive: Path | None = None
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class PreparedTree:
    """A patched llama.cpp tree on this machine, ready for CMake."""

    folder: Path
    fingerprint: str


def read_vendor(folder: Path | None = None) -> Vendor:
    """Read pin, series and overlay; by default those shipped with the package.

    Raises:
        SourceError: The pin is malformed.
        PatchError: The series names a patch that is missing or no diff.
    """
    root = folder or resources.vendor()
    names = parse_series((root / "series").read_text())
    overlay = root / "overlay"
    return Vendor(
        pin=parse_pin((root / "UPSTREAM").read_text()),
        series=tuple(_read_patch(root / "patches" / name) for name in names),
        overlay=files.read_files(overlay) if overlay.is_dir() else {},
    )


def locate_source(pin: Pin, given: Path | None = None) -> Source:
    """Decide what to build from: the pin, or what the user gave with ``--source``.

    A given archive must be the pinned one. A given llama.cpp tree may be any; its contents make
    its own fingerprint, so that its engine shakes hands with no other.

    Raises:
        SourceError: The given path is neither.
    """
    if given is None:
        return Source(pin.origin, pinned=True)
    archive = given / pin.archive_name if given.is_dir() else given
    if archive.is_file():
        return Source(pin.origin, pinned=True, archive=archive)
    for folder in (given, given / pin.sdist_subdir):
        if (folder / "CMakeLists.txt").is_file() and (folder / "ggml").is_dir():
            return Source(f"tree:{_tree_hash(folder)}", pinned=False, folder=folder)
    reason = f"neither a llama.cpp tree nor {pin.archive_name} nor a folder with one of them"
    raise SourceError(reason, location=str(given))


def source_fingerprint(source: Source, vendor: Vendor) -> str:
    """Name the source once it is patched."""
    return fingerprint(source.origin, vendor.series, vendor.overlay)


def tree_name(fingerprint: str) -> str:
    """Name the folder of a patched tree, here or on a worker."""
    return f"{fingerprint}-{SELECTION}"


def prepare_tree(
    local: Remote, source: Source, vendor: Vendor, *, paths: HostPaths
) -> Workflow[PreparedTree]:
    """Have the patched tree on this machine; one that is there already is taken as it is.

    Raises:
        SourceError: The source cannot be had or is not the pinned one.
        PatchError: A patch does not apply.
        DiskFullError: The tree does not fit.
    """
    name = source_fingerprint(source, vendor)
    tree = PreparedTree(Path(paths.cache) / "sources" / tree_name(name), name)
    if _is_stamped(tree):
        return tree
    if not source.pinned:
        yield Warned(
            f"building from {source.folder}, not from the pinned source: this engine ({name}) works"
            " only with workers built from the same tree"
        )
    lock = files.FileLock(tree.folder.parent / "lock")
    yield from _wait_for(lock, f"preparing source {name}")
    try:
        if not _is_stamped(tree):
            yield from _prepare(local, source, vendor, tree=tree, cache=Path(paths.cache))
    finally:
        lock.release()
    return tree


def fetch_archive(local: Remote, pin: Pin, *, cache: Path) -> Workflow[Path]:
    """Have the pinned source archive in the cache, downloaded by pip if need be, and check it.

    Raises:
        SourceError: It cannot be downloaded, or is not the pinned one; a wrong file is removed.
    """
    archive = cache / "sources" / pin.archive_name
    if not archive.exists():
        yield from _download(local, pin, archive)
    try:
        yield from _check_archive(archive, pin)
    except SourceError:
        archive.unlink(missing_ok=True)
        raise
    return archive


def _read_patch(path: Path) -> Patch:
    if not path.is_file():
        raise PatchError(path.name, file="nothing", reason="the series names it, but it is missing")
    return parse_patch(path.name, path.read_text())


def _is_stamped(tree: PreparedTree) -> bool:
    stamp = tree.folder / STAMP
    return stamp.is_file() and stamp.read_text() == tree.fingerprint


def _wait_for(lock: files.FileLock, purpose: str) -> Workflow[None]:
    told = ""
    while (holder := lock.acquire(purpose)) is not None:
        if holder != told:
            yield Note(f"waiting for {holder}")
            told = holder
        time.sleep(0.2)


def _prepare(
    local: Remote, source: Source, vendor: Vendor, *, tree: PreparedTree, cache: Path
) -> Workflow[None]:
    files.remove_stale_partials(tree.folder.parent)
    files.remove_tree(tree.folder)  # without its stamp it is not ours to trust
    partial = files.new_partial_folder(tree.folder)
    try:
        with files.disk_full_as_error(partial, need=200 << 20):
            yield from _fill(local, source, vendor, folder=partial, cache=cache)
            (partial / STAMP).write_text(tree.fingerprint)
            files.publish(partial, tree.folder)
    finally:
        files.remove_tree(partial)


def _fill(
    local: Remote, source: Source, vendor: Vendor, *, folder: Path, cache: Path
) -> Workflow[None]:
    label = "Preparing the source"
    if source.folder:
        yield Started(label)
        files.copy_files(source.folder, folder, is_needed)
    else:
        yield from _unpack(local, source, vendor.pin, folder=folder, cache=cache)
    _add_overlay(folder, vendor.overlay)
    for done, patch in enumerate(vendor.series, start=1):
        for shift in _apply(local, patch, folder):
            if source.pinned:
                raise PatchError(patch.name, file=shift[0], reason=shift[1])
            yield Warned(f"patch {patch.name}, {shift[0]}: {shift[1]}")
        yield Progress(label, done, len(vendor.series))
    yield Finished(label, f"{len(vendor.series)} patches, {len(vendor.overlay)} files of our own")


def _unpack(
    local: Remote, source: Source, pin: Pin, *, folder: Path, cache: Path
) -> Workflow[None]:
    if source.archive:
        archive = source.archive
        yield from _check_archive(archive, pin)
    else:
        archive = yield from fetch_archive(local, pin, cache=cache)
    label = "Unpacking the source"
    yield Started(label)
    prefix = f"{pin.top_folder}/{pin.sdist_subdir}"
    for count in files.extract_below(archive, prefix, folder, keep=is_needed):
        if count % 100 == 0:
            yield Progress(label, count, None)
    if not (folder / "CMakeLists.txt").is_file():
        raise SourceError(f"it holds no llama.cpp under {prefix}", location=str(archive))
    yield Finished(label)


def _add_overlay(folder: Path, overlay: Mapping[str, bytes]) -> None:
    try:
        files.write_files(folder, overlay)
    except FileExistsError as error:
        file = Path(error.filename).relative_to(folder).as_posix()
        reason = "llama.cpp has a file of that name, which the overlay would hide"
        raise PatchError("overlay", file=file, reason=reason) from error


def _apply(local: Remote, patch: Patch, folder: Path) -> tuple[tuple[str, str], ...]:
    # The cache may lie inside somebody's git repository, whose rules must not count here.
    apply = Command(
        (
            *("env", "-u", "GIT_DIR", "-u", "GIT_WORK_TREE", "-u", "GIT_INDEX_FILE"),
            *("git", "apply", "--verbose", "--whitespace=nowarn", "-"),
        ),
        env={"GIT_CEILING_DIRECTORIES": str(folder.parent), "LC_ALL": "C"},
        cwd=str(folder),
        stdin=patch.diff.encode(),
    )
    result = local.run(apply, timeout=60.0, check=False)
    if result.exit_code != 0:
        file, reason = explain_failure(result.stderr)
        raise PatchError(patch.name, file=file, reason=reason)
    return shifted_hunks(result.stdout + result.stderr)


def _download(local: Remote, pin: Pin, archive: Path) -> Workflow[None]:
    label = f"Downloading llama-cpp-python {pin.llama_cpp_python} (77 MB)"
    yield Started(label)
    partial = files.new_partial_folder(archive)
    requirement = f"llama-cpp-python=={pin.llama_cpp_python}"
    # --no-binary names the one package: for :all:, pip would also build its build tools.
    words = ("download", "--no-deps", "--no-binary", "llama-cpp-python", "--quiet")
    pip = Command((sys.executable, "-m", "pip", *words, "-d", str(partial), requirement))
    try:
        files.require_space(partial, 200 << 20)
        local.run(pip, timeout=_DOWNLOAD_SECONDS)
        files.publish(partial / pin.archive_name, archive)
    except (RemoteCommandError, FileNotFoundError) as error:
        raise SourceError(f"pip could not download it: {error}", location=requirement) from error
    finally:
        files.remove_tree(partial)
    yield Finished(label)


def _check_archive(archive: Path, pin: Pin) -> Workflow[None]:
    label = "Checking the source archive"
    done = 0
    total = archive.stat().st_size
    digest = hashlib.sha256()
    for chunk in files.read_chunks(archive):
        digest.update(chunk)
        done += len(chunk)
        yield Progress(label, done, total, Unit.BYTES)
    if digest.hexdigest() != pin.sdist_sha256:
        reason = f"its SHA-256 is {digest.hexdigest()}, the pin says {pin.sdist_sha256}"
        raise SourceError(reason, location=str(archive))


def _tree_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for name, content in files.read_files(folder, is_needed).items():
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
