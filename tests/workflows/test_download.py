"""Downloads from a hub that behaves: what is chosen, kept, resumed, linked and refused."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from ggufcluster.adapters import fetching
from ggufcluster.adapters.files import FileLock
from ggufcluster.adapters.partial_file import PartialFile, note_path
from ggufcluster.core.secret import Secret
from ggufcluster.errors import (
    AccessDeniedError,
    DiskFullError,
    DownloadBusyError,
    FileChoiceError,
    LocalFileError,
    OfflineError,
    RepositoryMissingError,
    RevisionMissingError,
    RevisionMovedError,
    ShardSetError,
    TransferError,
    UnsafeNameError,
)
from ggufcluster.testing import HubServer
from ggufcluster.workflows.events import Progress, Unit
from tests.waiting import wait_for
from tests.workflows.downloads import POLICY, REPO, Downloader, content, hashes, shards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server() -> Iterator[HubServer]:
    """A hub."""
    with HubServer() as running:
        yield running


@pytest.fixture
def downloader(server: HubServer, tmp_path: Path) -> Downloader:
    """A downloader of that hub."""
    return Downloader(server, tmp_path / "models", tmp_path / "cache")


def cached(downloader: Downloader, commit: str, name: str, data: bytes) -> Path:
    """Lay a file into the hub's own cache as its package does."""
    folder = downloader.cache / "models--me--model"
    blob = folder / "blobs" / next(iter(hashes({name: data}).values()))
    link = folder / "snapshots" / commit / name
    for path in (blob.parent, link.parent, folder / "refs"):
        path.mkdir(parents=True, exist_ok=True)
    # Since version 2 a blob may itself be a link into a store that all repositories share.
    store = downloader.cache / "blobs" / "ab" / "abcd"
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_bytes(data)
    blob.symlink_to(store)
    link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs" / "main").write_text(commit)
    return store


@contextmanager
def released(server: HubServer, *, requests: int) -> Iterator[None]:
    """Let a server that holds back send on once so many requests have come."""

    def watch() -> None:
        wait_for(lambda: len(server.data_requests()) >= requests, what="the requests")
        server.release()

    watching = threading.Thread(target=watch)
    watching.start()
    yield
    watching.join()


def test_all_shards_come_verified(server: HubServer, downloader: Downloader) -> None:
    """Every shard arrives under its published name, each byte once, all by ranges."""
    files = shards(3, 300_000)
    commit = server.publish(REPO, files)

    done = downloader.run()

    assert downloader.contents() == hashes(files)
    assert (done.commit, done.fetched) == (commit, sum(map(len, files.values())))
    assert done.models == (downloader.folder / "m-Q4_K_M-00001-of-00003.gguf",)
    assert server.served == done.fetched
    assert all("range" in asked.headers for asked in server.data_requests())


def test_all_shards_are_fetched_at_once(server: HubServer, downloader: Downloader) -> None:
    """The first requests of the connections go to different shards."""
    server.publish(REPO, shards(4, 300_000))
    server.hold(0)  # or a quick one would take a second part before a slow one its first
    with released(server, requests=4):
        downloader.run()
    first = {asked.path.partition("?")[0] for asked in server.data_requests()[:4]}
    assert len(first) == 4


def test_the_hub_is_asked_once_a_file(server: HubServer, downloader: Downloader) -> None:
    """Parts come from the signed address: many parts cost the hub one request a file."""
    server.publish(REPO, shards(2, 900_000))
    downloader.run()
    assert len(server.data_requests()) > 20
    assert len([asked for asked in server.asked if asked.origin == "hub"]) == 3


def test_a_second_run_has_nothing_to_do(server: HubServer, downloader: Downloader) -> None:
    """What is there and verified is neither fetched nor hashed again."""
    server.publish(REPO, shards(2, 200_000))
    downloader.run()
    served, downloader.events = server.served, []

    done = downloader.run()

    assert (server.served, done.fetched) == (served, 0)
    assert not [event for event in downloader.events if isinstance(event, Progress)]


def test_progress_tells_each_shard_and_the_whole(server: HubServer, downloader: Downloader) -> None:
    """The last report of each shard and of all together is complete."""
    files = shards(2, 200_000)
    server.publish(REPO, files)
    downloader.run()
    last = {e.label: (e.done, e.total) for e in downloader.events if isinstance(e, Progress)}
    sizes = [len(data) for data in files.values()]
    assert last == {
        "Downloading": (sum(sizes), sum(sizes)),
        "shard 1 of 2": (sizes[0], sizes[0]),
        "shard 2 of 2": (sizes[1], sizes[1]),
    }
    units = {event.unit for event in downloader.events if isinstance(event, Progress)}
    assert units == {Unit.BYTES}


def test_idle_connections_share_what_is_left(server: HubServer, tmp_path: Path) -> None:
    """One large part is split among connections that have nothing to do, and comes out right."""
    policy = replace(POLICY, part_bytes=8 << 20, least_split=100_000)
    files = {"m-Q8_0.gguf": content(6_000_000)}
    server.publish(REPO, files)
    downloader = Downloader(server, tmp_path / "m", tmp_path / "c", policy=policy)
    server.hold(1_000_000)  # or the first one might be done before the others began
    with released(server, requests=2):
        downloader.run()
    assert downloader.contents() == hashes(files)
    assert len(server.data_requests()) > 1


def test_an_interrupted_download_goes_on(server: HubServer, downloader: Downloader) -> None:
    """After Ctrl-C a new run fetches only what had not come, and nothing had its final name."""
    files = shards(2, 1_500_000)
    server.publish(REPO, files)
    downloader.stop_at(1_000_000)
    assert downloader.contents() == {}
    missing_at_least = sum(map(len, files.values())) - server.served

    done = downloader.run()

    assert downloader.contents() == hashes(files)
    assert missing_at_least <= done.fetched < 2_100_000


def test_after_a_power_cut_only_the_note_is_trusted(
    server: HubServer, downloader: Downloader
) -> None:
    """Bytes that came after the last note count as missing, whatever the file seems to hold."""
    files = {"m-Q8_0.gguf": content(1_500_000)}
    server.publish(REPO, files)
    downloader.stop_at(800_000)
    partial = downloader.folder / ".ggufcluster" / "m-Q8_0.gguf.partial"
    note = json.loads(note_path(partial).read_bytes())
    kept = sum(end - start for start, end in note["done"])
    assert kept >= 800_000
    with partial.open("r+b") as file:
        for start, end in [*note["done"], [1_500_000, 1_500_000]]:
            del start
            file.seek(end)
            file.write(b"\0" * min(1000, 1_500_000 - end))

    assert downloader.run().fetched == 1_500_000 - kept
    assert downloader.contents() == hashes(files)


def test_at_most_a_part_is_at_risk(server: HubServer, downloader: Downloader) -> None:
    """At any moment what has come and is not noted on disk is no more than one part."""
    risks = []
    original = fetching.Fetch._write

    def watched(self: fetching.Fetch, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        with self._changed:
            risks.append(self._unsaved() + self._in_flight)

    server.publish(REPO, shards(2, 1_000_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching.Fetch, "_write", watched)
        downloader.run()
    assert max(risks) <= 64 << 10
    assert len(risks) > 20


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 9}', b"\xff\xfe"])
def test_a_damaged_note_is_not_trusted(
    server: HubServer, downloader: Downloader, damage: bytes
) -> None:
    """A note that cannot be read means that nothing is there."""
    files = {"m-Q8_0.gguf": content(700_000)}
    server.publish(REPO, files)
    downloader.stop_at(300_000)
    note_path(downloader.folder / ".ggufcluster" / "m-Q8_0.gguf.partial").write_bytes(damage)
    assert downloader.run().fetched == 700_000
    assert downloader.contents() == hashes(files)


def test_a_file_downloaded_in_one_run_is_read_once(
    server: HubServer, downloader: Downloader
) -> None:
    """Hashing reads each byte back once while the rest comes, and nothing afterwards."""
    counts = []
    original = PartialFile.read

    def counted(self: PartialFile, offset: int, buffer: memoryview) -> int:
        count = original(self, offset, buffer)
        counts.append(count)
        server.release()
        return count

    server.publish(REPO, {"m-Q8_0.gguf": content(900_000)})
    server.hold(300_000)  # so that there is something to hash before all has come
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartialFile, "read", counted)
        downloader.run()
    assert sum(counts) == 900_000
    assert len(counts) > 1


def test_files_of_git_itself_are_verified_too(server: HubServer, downloader: Downloader) -> None:
    """A small file without a published SHA-256 is checked by git's own hash of it."""
    files = {"config.json": b"{}", "m-Q8_0.gguf": content(10)}
    server.publish(REPO, files, plain=("config.json",))
    downloader.run(include="*")
    assert downloader.contents() == hashes(files)


def test_an_empty_file_is_a_file(server: HubServer, downloader: Downloader) -> None:
    """A file of no bytes needs no request and still appears."""
    server.publish(REPO, {"m-Q8_0.gguf": b"", "n-Q8_0.gguf": content(5)})
    downloader.run(include="*.gguf")
    assert downloader.contents() == hashes({"m-Q8_0.gguf": b"", "n-Q8_0.gguf": content(5)})


def test_files_in_the_hubs_cache_are_linked(server: HubServer, downloader: Downloader) -> None:
    """A file that is in the cache is verified and linked through all its links, not fetched."""
    data = content(300_000)
    commit = server.publish(REPO, {"m-Q8_0.gguf": data})
    store = cached(downloader, commit, "m-Q8_0.gguf", data)

    done = downloader.run()

    assert done.linked == (downloader.folder / "m-Q8_0.gguf",)
    assert done.linked[0].samefile(store)
    assert server.data_requests() == []


def test_a_damaged_file_in_the_cache_is_not_used(server: HubServer, downloader: Downloader) -> None:
    """A cached file of the right size and the wrong bytes is warned of and fetched."""
    data = content(300_000)
    commit = server.publish(REPO, {"m-Q8_0.gguf": data})
    cached(downloader, commit, "m-Q8_0.gguf", data).write_bytes(content(300_000, seed=9))
    downloader.run()
    assert "damaged" in downloader.warnings()
    assert downloader.contents() == hashes({"m-Q8_0.gguf": data})


def test_offline_nothing_is_asked(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, what is here and verified is found without a request, what is not is named."""
    server.publish(REPO, shards(2, 100_000) | {"n-Q8_0.gguf": content(9)})
    downloader.run(quant="q4_k_m")
    asked = len(server.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    assert downloader.run(quant="Q4_K_M").fetched == 0
    with pytest.raises(OfflineError, match=r"n-Q8_0\.gguf"):
        downloader.run(quant="Q8_0")
    with pytest.raises(OfflineError, match="revision v2"):
        downloader.run(quant="Q4_K_M", revision="v2")
    assert len(server.asked) == asked


def test_offline_a_commit_is_known_by_its_digits(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever name it was fetched by; what there is is named when another one is asked for."""
    commit = server.publish(REPO, {"m-Q8_0.gguf": content(100)}, revision="v1")
    downloader.run(revision="v1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert downloader.run(revision=commit[:7]).commit == commit
    assert downloader.run(revision=commit).commit == commit
    with pytest.raises(OfflineError, match=r"nothing of revision main is here; there are: v1$"):
        downloader.run()


def test_offline_a_hole_in_the_cache_is_no_fault_of_the_repository(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot whose link leads nowhere is told as what is missing here."""
    data = {"m-Q8_0.gguf": content(1000)}
    store = cached(downloader, server.publish(REPO, data), *data.popitem())
    store.unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError, match="of what the hub's cache has"):
        downloader.run()
    assert server.asked == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert downloader.run().fetched == 1000


def test_offline_the_hubs_cache_is_enough(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, a file of the hub's cache is verified by the name of its blob and linked."""
    data = content(1000)
    cached(downloader, "c" * 40, "m-Q8_0.gguf", data)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert len(downloader.run().linked) == 1
    assert downloader.contents() == hashes({"m-Q8_0.gguf": data})


def test_an_endpoint_may_have_a_path(tmp_path: Path) -> None:
    """A mirror below a path prefix is asked below that prefix only."""
    with HubServer(prefix="/mirror/hf") as server:
        server.publish(REPO, {"m-Q8_0.gguf": content(100_000)})
        Downloader(server, tmp_path / "m", tmp_path / "c").run()
        assert all(a.path.startswith("/mirror/hf/") for a in server.asked if a.origin == "hub")


def test_a_mirror_may_serve_files_itself(server: HubServer, downloader: Downloader) -> None:
    """Without a redirect, parts come from the hub's own address, with the token it wants."""
    server.direct = True
    server.private.add(REPO)
    files = {"m-Q8_0.gguf": content(200_000)}
    server.publish(REPO, files)
    downloader.token = Secret(server.token)
    downloader.run()
    assert downloader.contents() == hashes(files)


def test_the_token_goes_to_the_hub_only(server: HubServer, downloader: Downloader) -> None:
    """A private repository is read with the token, which the file server never sees."""
    server.private.add(REPO)
    server.publish(REPO, {"m-Q8_0.gguf": content(200_000)})
    downloader.token = Secret(server.token)
    downloader.run()
    seen = {(asked.origin, asked.headers.get("authorization")) for asked in server.asked}
    assert seen == {("hub", f"Bearer {server.token}"), ("files", None)}


def test_a_private_repository_without_token(server: HubServer, downloader: Downloader) -> None:
    """It looks like one that is not there, and the message says both."""
    server.private.add(REPO)
    server.publish(REPO, {"m-Q8_0.gguf": b"x"})
    with pytest.raises(RepositoryMissingError, match="private: no token"):
        downloader.run()


def test_a_gated_repository(server: HubServer, downloader: Downloader) -> None:
    """Names and sizes may be read, the files may not: that is told as what it is, at once."""
    server.gated.add(REPO)
    server.publish(REPO, {"m-Q8_0.gguf": content(1000)})
    with pytest.raises(AccessDeniedError) as caught:
        downloader.run()
    assert caught.value.gated
    assert server.data_requests() == []


def test_a_token_that_is_refused(server: HubServer, downloader: Downloader) -> None:
    """A wrong token is told as such, and is in no message."""
    server.publish(REPO, {"m-Q8_0.gguf": b"x"})
    downloader.token = Secret("hf_wrong")
    with pytest.raises(AccessDeniedError, match="token is refused") as caught:
        downloader.run()
    assert "hf_wrong" not in str(caught.value)


def test_nobody_answers(downloader: Downloader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that cannot be reached is named by its host."""
    monkeypatch.setattr("ggufcluster.adapters.hub.time.sleep", lambda _seconds: None)
    root = downloader.server.root
    downloader.server._servers[0].socket.close()
    with pytest.raises(TransferError, match=root.removeprefix("http://")):
        downloader.run()


def test_wrong_names_are_told(server: HubServer, downloader: Downloader) -> None:
    """A missing quantisation lists those there are; a missing revision is named."""
    server.publish(REPO, shards(2, 10) | {"m-UD-IQ4_XS.gguf": b"x", "mmproj-F16.gguf": b"y"})
    with pytest.raises(FileChoiceError, match="has no Q9; there are: Q4_K_M, UD-IQ4_XS"):
        downloader.run(quant="Q9")
    with pytest.raises(FileChoiceError, match="2 models"):
        downloader.run()
    with pytest.raises(FileChoiceError, match="no file fits"):
        downloader.run(include="*.bin")
    with pytest.raises(RevisionMissingError, match="v9"):
        downloader.run(quant="Q4_K_M", revision="v9")
    assert downloader.contents() == {}


def test_an_incomplete_set_is_refused(server: HubServer, downloader: Downloader) -> None:
    """A set that lacks a shard is refused before a byte is fetched."""
    files = shards(3, 1000)
    del files["m-Q4_K_M-00002-of-00003.gguf"]
    server.publish(REPO, files)
    with pytest.raises(ShardSetError, match="00002-of-00003"):
        downloader.run()
    assert server.data_requests() == []


def test_a_shard_of_another_set_is_noticed(
    server: HubServer, downloader: Downloader, toys: dict[str, Path]
) -> None:
    """A GGUF that says it is no shard, under the name of one, ends in an error that names it."""
    downloader.policy = replace(POLICY, part_bytes=1 << 20)
    toy = toys["random"]
    names = [f"m-Q4_K_M-{n:05d}-of-00002.gguf" for n in (1, 2)]
    server.publish(REPO, dict.fromkeys(names, toy))
    with pytest.raises(ShardSetError, match=r"00001-of-00002.*no shard"):
        downloader.run()


@pytest.mark.parametrize(
    "name", ["../m-Q8_0.gguf", "/etc/m-Q8_0.gguf", "a/../../m-Q8_0.gguf", ".ggufcluster/Q8_0.gguf"]
)
def test_names_that_leave_the_folder(server: HubServer, downloader: Downloader, name: str) -> None:
    """A published name that leads out of the folder, or into our notes, is refused."""
    server.publish(REPO, {name: b"x"})
    with pytest.raises(UnsafeNameError):
        downloader.run(include="*")
    assert server.data_requests() == []


def test_a_disk_too_small_is_noticed_before(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without enough space nothing is fetched, and both sizes are told."""
    server.publish(REPO, {"m-Q8_0.gguf": content(300_000)})
    monkeypatch.setattr("ggufcluster.adapters.files.free_bytes", lambda _path: 100_000)
    with pytest.raises(DiskFullError) as caught:
        downloader.run()
    assert (caught.value.need > 300_000, caught.value.free) == (True, 100_000)
    assert server.data_requests() == []


def test_a_disk_that_becomes_full_keeps_what_came(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the bytes that are missing; with space again, a new run goes on."""
    files = {"m-Q8_0.gguf": content(1_000_000)}
    server.publish(REPO, files)
    real = os.pwrite
    written: list[int] = []

    def full(descriptor: int, data: memoryview, offset: int) -> int:
        if sum(written) > 500_000:
            raise OSError(28, "No space left on device")
        written.append(len(data))
        return real(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskFullError) as caught:
            downloader.run()
    assert caught.value.need < 500_000
    assert "are kept" in caught.value.__notes__[0]
    assert downloader.contents() == {}
    assert downloader.run().fetched == caught.value.need
    assert downloader.contents() == hashes(files)


def test_a_disk_too_full_for_notes_promises_nothing(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said to be kept is what the next run finds."""
    server.publish(REPO, {"m-Q8_0.gguf": content(1_000_000)})

    def full(*_: object) -> None:
        raise DiskFullError("this machine", path="x", need=1, free=0)

    with monkeypatch.context() as patch:
        patch.setattr("ggufcluster.adapters.partial_file.replace_file", full)
        with pytest.raises(DiskFullError) as caught:
            downloader.run()
    assert caught.value.__notes__[0].startswith("0 B of 977 KiB are kept")
    assert downloader.run().fetched == 1_000_000


def test_a_folder_on_another_disk_is_told_before_anything_is_fetched(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole file could not be renamed there; a folder in the file's place is told, too."""
    server.publish(REPO, {"Q8_0/m-Q8_0.gguf": content(1000)})
    with monkeypatch.context() as patch:
        patch.setattr("ggufcluster.adapters.files.is_same_disk", lambda one, other: one == other)
        with pytest.raises(LocalFileError, match=r"Q8_0: lies on another disk .* --dir"):
            downloader.run()
    (downloader.folder / "Q8_0" / "m-Q8_0.gguf").mkdir(parents=True)
    with pytest.raises(LocalFileError, match="is a folder, where a file is to be"):
        downloader.run(restart=True)
    assert server.data_requests() == []


def test_two_runs_at_once(server: HubServer, downloader: Downloader) -> None:
    """A file that another process downloads is left to it, which is named."""
    server.publish(REPO, {"m-Q8_0.gguf": content(1000)})
    lock = FileLock(downloader.folder / ".ggufcluster" / "m-Q8_0.gguf.lock")
    assert lock.acquire("test") is None
    try:
        with pytest.raises(DownloadBusyError, match=f"process {os.getpid()}"):
            downloader.run()
    finally:
        lock.release()
    downloader.run()
    assert list(downloader.contents()) == ["m-Q8_0.gguf"]


def test_a_revision_that_moved_keeps_the_old(server: HubServer, downloader: Downloader) -> None:
    """A finished file of an older commit is not replaced unless that is asked for."""
    old, new = {"m-Q8_0.gguf": content(5000)}, {"m-Q8_0.gguf": content(6000, seed=2)}
    first = server.publish(REPO, old)
    downloader.run()
    server.publish(REPO, new)

    with pytest.raises(RevisionMovedError) as caught:
        downloader.run()
    assert caught.value.ours == first
    assert downloader.contents() == hashes(old)
    assert downloader.run(revision=first).fetched == 0

    downloader.run(restart=True)
    assert downloader.contents() == hashes(new)


def test_a_revision_that_moved_keeps_parts(server: HubServer, downloader: Downloader) -> None:
    """Parts of an older commit are kept, finished by naming that commit, or dropped on request."""
    old, new = {"m-Q8_0.gguf": content(900_000)}, {"m-Q8_0.gguf": content(900_000, seed=2)}
    first = server.publish(REPO, old)
    downloader.stop_at(400_000)
    server.publish(REPO, new)

    with pytest.raises(RevisionMovedError) as caught:
        downloader.run()
    assert caught.value.ours == first
    assert downloader.run(revision=first).fetched < 600_000
    assert downloader.contents() == hashes(old)


def test_parts_survive_a_commit_that_left_the_file_alone(
    server: HubServer, downloader: Downloader
) -> None:
    """If only other files changed, the download goes on under the new commit."""
    model = content(900_000)
    server.publish(REPO, {"m-Q8_0.gguf": model, "README.md": b"1"})
    downloader.stop_at(400_000)
    commit = server.publish(REPO, {"m-Q8_0.gguf": model, "README.md": b"2"})
    done = downloader.run()
    assert done.commit == commit
    assert done.fetched < 600_000


def test_a_foreign_file_of_that_name_is_kept(server: HubServer, downloader: Downloader) -> None:
    """A file that nobody verified is hashed: the published one is taken over, another is left."""
    data = content(5000)
    server.publish(REPO, {"m-Q8_0.gguf": data})
    downloader.folder.mkdir()
    target = downloader.folder / "m-Q8_0.gguf"
    target.write_bytes(data)
    assert downloader.run().fetched == 0
    target.write_bytes(content(5000, seed=3))
    with pytest.raises(RevisionMovedError, match="not the published file"):
        downloader.run()
    assert target.read_bytes() == content(5000, seed=3)
