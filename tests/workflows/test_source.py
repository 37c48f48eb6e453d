"""Getting, checking and patching the source."""

from __future__ import annotations

import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters import files
from ggufcluster.adapters.local import LocalRemote
from ggufcluster.errors import PatchError, SourceError
from ggufcluster.workflows.events import Note, Progress, Started, Warned, drain
from ggufcluster.workflows.source import (
    STAMP,
    PreparedTree,
    locate_source,
    prepare_tree,
    read_vendor,
    source_fingerprint,
    tree_name,
)
from tests.workflows.sources import (
    HOOK,
    SECOND,
    TREE,
    VERSION,
    host_paths,
    make_archive,
    make_vendor,
    write_texts,
)

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = LocalRemote()
ARCHIVE_NAME = f"llama_cpp_python-{VERSION}.tar.gz"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return a source archive of the user's."""
    return make_archive(tmp_path / "given" / ARCHIVE_NAME)


def prepare(tmp_path: Path, vendor_folder: Path, given: Path | None = None) -> PreparedTree:
    """Prepare a tree in the temporary cache."""
    vendor = read_vendor(vendor_folder)
    source = locate_source(vendor.pin, given)
    return drain(prepare_tree(LOCAL, source, vendor, paths=host_paths(tmp_path)))


def leftovers(tmp_path: Path) -> list[str]:
    """Return what lies in the cache's source folder besides the lock."""
    folder = tmp_path / "cache" / "sources"
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def test_tree_is_unpacked_patched_and_stamped(tmp_path: Path, archive: Path) -> None:
    """Only what the build needs is there, with overlay, patches in order, and the stamp."""
    vendor = make_vendor(
        tmp_path / "vendor",
        archive,
        patches={"hook.patch": HOOK, "second.patch": SECOND},
        overlay={"ggml/src/own.cpp": "ours\n"},
    )
    tree = prepare(tmp_path, vendor, archive)

    assert (tree.folder / "ggml/src/ggml.c").read_text().splitlines() == [
        "int one;", "int two;", "int hook;", "int second;", "int three;", "int four;", "int five;",
    ]  # fmt: skip
    assert (tree.folder / "ggml/src/own.cpp").read_text() == "ours\n"
    assert not (tree.folder / "docs").exists()
    assert (tree.folder / STAMP).read_text() == tree.fingerprint
    assert leftovers(tmp_path) == [tree.folder.name] == [tree_name(tree.fingerprint)]


def test_stamped_tree_is_taken_as_it_is(tmp_path: Path, archive: Path) -> None:
    """A second preparation touches nothing, not even the archive."""
    vendor = make_vendor(tmp_path / "vendor", archive)
    tree = prepare(tmp_path, vendor, archive)
    (tree.folder / "src/llama.cpp").write_text("marked\n")
    archive.write_bytes(b"no longer an archive")

    assert prepare(tmp_path, vendor, archive) == tree
    assert (tree.folder / "src/llama.cpp").read_text() == "marked\n"


def test_tree_without_stamp_is_made_anew(tmp_path: Path, archive: Path) -> None:
    """A tree that an interruption left without its stamp is not trusted."""
    vendor = make_vendor(tmp_path / "vendor", archive)
    tree = prepare(tmp_path, vendor, archive)
    (tree.folder / STAMP).unlink()
    (tree.folder / "src/llama.cpp").unlink()

    assert (prepare(tmp_path, vendor, archive).folder / "src/llama.cpp").exists()


@pytest.mark.parametrize(
    "wrong", [HOOK.replace("int two", "int 2"), HOOK.replace("ggml.c", "no.c")]
)
def test_patch_that_does_not_apply_names_itself_and_the_file(
    tmp_path: Path, archive: Path, wrong: str
) -> None:
    """The error names patch and file; nothing half-patched is left."""
    patches = {"hook.patch": HOOK, "second.patch": wrong}
    vendor = make_vendor(tmp_path / "vendor", archive, patches=patches)
    with pytest.raises(PatchError) as caught:
        prepare(tmp_path, vendor, archive)

    assert caught.value.patch == "second.patch"
    assert caught.value.file.startswith("ggml/src/")
    assert leftovers(tmp_path) == []


def test_patch_that_fits_elsewhere_is_refused(tmp_path: Path, archive: Path) -> None:
    """On the pinned source a hunk must fit at its own line: little context may fit anywhere."""
    shifted = HOOK.replace("@@ -2,2 +2,3 @@", "@@ -4,2 +4,3 @@")
    vendor = make_vendor(tmp_path / "vendor", archive, patches={"hook.patch": shifted})
    with pytest.raises(PatchError, match="fits only -2 lines away"):
        prepare(tmp_path, vendor, archive)


def test_series_that_names_no_file_is_refused(tmp_path: Path, archive: Path) -> None:
    """A name in the series without a patch file is said to be missing."""
    vendor = make_vendor(tmp_path / "vendor", archive)
    (vendor / "series").write_text("hook.patch\nghost.patch\n")
    with pytest.raises(PatchError, match=r"ghost\.patch"):
        read_vendor(vendor)


def test_overlay_must_not_hide_an_upstream_file(tmp_path: Path, archive: Path) -> None:
    """A file of ours with the name of an upstream one is an error that names it."""
    vendor = make_vendor(tmp_path / "vendor", archive, overlay={"src/llama.cpp": "ours"})
    with pytest.raises(PatchError) as caught:
        prepare(tmp_path, vendor, archive)

    assert (caught.value.patch, caught.value.file) == ("overlay", "src/llama.cpp")


def test_cache_inside_a_git_repository_is_patched_all_the_same(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a repository around the cache nor the caller's git settings divert the patches."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    write_texts(tmp_path, {".gitignore": "cache/\n"})
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    tree = prepare(tmp_path, make_vendor(tmp_path / "vendor", archive), archive)

    assert "int hook;" in (tree.folder / "ggml/src/ggml.c").read_text()


def test_wrong_archive_of_the_user_is_refused_and_kept(tmp_path: Path, archive: Path) -> None:
    """The error names both hashes; the user's own file is not touched."""
    vendor = make_vendor(tmp_path / "vendor", archive)
    make_archive(archive, {**TREE, "src/llama.cpp": "other\n"})
    with pytest.raises(SourceError) as caught:
        prepare(tmp_path, vendor, archive)

    assert read_vendor(vendor).pin.sdist_sha256 in caught.value.reason
    assert archive.exists()


def test_wrong_archive_in_the_cache_is_removed(tmp_path: Path, archive: Path) -> None:
    """A cached archive that is not the pinned one goes, so that the next try gets it anew."""
    vendor = make_vendor(tmp_path / "vendor", archive)
    cached = tmp_path / "cache" / "sources" / ARCHIVE_NAME
    make_archive(cached, {**TREE, "src/llama.cpp": "other\n"})
    with pytest.raises(SourceError, match="SHA-256"):
        prepare(tmp_path, vendor)

    assert not cached.exists()


def test_cached_archive_is_used_without_download(tmp_path: Path, archive: Path) -> None:
    """The right archive in the cache is checked and used."""
    vendor = make_vendor(tmp_path / "vendor", archive)
    cached = tmp_path / "cache" / "sources" / ARCHIVE_NAME
    cached.parent.mkdir(parents=True)
    archive.rename(cached)

    assert (prepare(tmp_path, vendor).folder / "CMakeLists.txt").exists()


def test_failed_download_is_a_source_error(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package client that cannot get the archive leads to one error and leaves nothing."""
    vendor = make_vendor(tmp_path / "vendor", archive)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(SourceError, match="pip could not download"):
        prepare(tmp_path, vendor)

    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("below", ["", "vendor/llama.cpp"])
def test_other_tree_has_its_own_fingerprint(tmp_path: Path, archive: Path, below: str) -> None:
    """A tree given by the user is patched in a copy, warned about, and never equals the pin."""
    vendor = read_vendor(make_vendor(tmp_path / "vendor", archive))
    mine = tmp_path / "mine"
    write_texts(mine / below, TREE)
    source = locate_source(vendor.pin, mine)
    events = list(prepare_tree(LOCAL, source, vendor, paths=host_paths(tmp_path)))

    assert source_fingerprint(source, vendor) != source_fingerprint(
        locate_source(vendor.pin), vendor
    )
    assert isinstance(events[0], Warned)
    assert (mine / below / "ggml/src/ggml.c").read_text() == TREE["ggml/src/ggml.c"]


def test_other_tree_changes_its_fingerprint_with_its_contents(
    tmp_path: Path, archive: Path
) -> None:
    """What the build does not read does not count, what it reads does."""
    pin = read_vendor(make_vendor(tmp_path / "vendor", archive)).pin
    write_texts(tmp_path / "mine", TREE)
    before = locate_source(pin, tmp_path / "mine").origin
    write_texts(tmp_path / "mine", {"docs/readme.md": "changed", ".git/HEAD": "x"})
    unread = locate_source(pin, tmp_path / "mine").origin
    write_texts(tmp_path / "mine", {"src/llama.cpp": "changed"})

    assert before == unread != locate_source(pin, tmp_path / "mine").origin


def test_folder_with_the_archive_counts_as_the_archive(tmp_path: Path, archive: Path) -> None:
    """A folder that holds the pinned archive is the pinned source."""
    vendor = make_vendor(tmp_path / "vendor", archive)

    assert locate_source(read_vendor(vendor).pin, archive.parent).archive == archive


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_useless_source_is_refused(tmp_path: Path, archive: Path, what: str) -> None:
    """A path that leads to no source is an error that names it."""
    pin = read_vendor(make_vendor(tmp_path / "vendor", archive)).pin
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=what):
        locate_source(pin, tmp_path / what)


def test_second_preparation_waits_for_the_first(tmp_path: Path, archive: Path) -> None:
    """While another process prepares, its holder is told, and then work goes on."""
    vendor = read_vendor(make_vendor(tmp_path / "vendor", archive))
    lock = files.FileLock(tmp_path / "cache" / "sources" / "lock")
    lock.acquire("preparing something")
    source = locate_source(vendor.pin, archive)
    work = prepare_tree(LOCAL, source, vendor, paths=host_paths(tmp_path))
    first = next(work)
    threading.Timer(0.3, lock.release).start()
    tree = drain(work)

    assert isinstance(first, Note)
    assert "preparing something" in first.text
    assert (tree.folder / STAMP).exists()


def test_progress_is_told(tmp_path: Path, archive: Path) -> None:
    """Checking, unpacking and patching each say what they are at."""
    vendor = read_vendor(make_vendor(tmp_path / "vendor", archive))
    source = locate_source(vendor.pin, archive)
    events = list(prepare_tree(LOCAL, source, vendor, paths=host_paths(tmp_path)))
    labels = [event.label for event in events if isinstance(event, Started | Progress)]

    assert list(dict.fromkeys(labels)) == [
        "Checking the source archive",
        "Unpacking the source",
        "Preparing the source",
    ]
