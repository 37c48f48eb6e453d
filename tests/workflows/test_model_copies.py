"""Model files on their way to another host: this machine plays it, with a real shell."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.errors import CopyDiffersError, DiskFullError, HostUnreachableError
from ggufcluster.workflows import model_copies
from ggufcluster.workflows.events import Note, Progress, Workflow, drain
from ggufcluster.workflows.model_copies import send_files, send_to_workers
from tests.workflows.fakes import World, collect

if TYPE_CHECKING:
    from ggufcluster.adapters.remote import CommandResult
    from ggufcluster.core.command import Command

DATA = bytes(range(256)) * 40


class Flaky(LocalRemote):
    """Breaks off, adds rubbish, or runs out of space at some piece.

    Attributes:
        pieces: Pieces that were taken.
        breaks_at: Number of the piece before which the connection breaks; -1 for never.
        spoils: Whether a byte is changed on the way.
        full: Whether there is no space left.
    """

    def __init__(self, breaks_at: int = -1, *, spoils: bool = False, full: bool = False) -> None:
        self.pieces = 0
        self.breaks_at = breaks_at
        self.spoils = spoils
        self.full = full

    def run(self, command: Command, *, timeout: float, check: bool = True) -> CommandResult:
        """Run it, unless it is one of those that go wrong."""
        text = command.shown()
        if "cat >> " in text:
            if self.pieces == self.breaks_at:
                raise HostUnreachableError("w", reason="the cable is out")
            self.pieces += 1
        result = super().run(command, timeout=timeout, check=check)
        if self.spoils and "cat >> " in text:
            part = Path(command.plain_argv()[4])
            part.write_bytes(b"?" + part.read_bytes()[1:])
        if self.full and "df -Pk" in text:
            sizes = result.stdout.split()[:2]
            return type(result)(0, " ".join([*sizes, "1"]), "")
        return result


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a kilobyte at a time, so that there is a middle to break off in."""
    monkeypatch.setattr(model_copies, "CHUNK_BYTES", 1024)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file to send."""
    path = tmp_path / "m-00001-of-00001.gguf"
    path.write_bytes(DATA)
    return path


def target(tmp_path: Path) -> Path:
    """Return where the file goes."""
    return tmp_path / "far" / "sub" / "m.gguf"


def send(tmp_path: Path, source: Path, remote: LocalRemote) -> model_copies.Copied:
    """Send the file to its folder."""
    folder = PurePosixPath(tmp_path / "far")
    (copied,) = drain(send_files(remote, [(source, "sub/m.gguf")], folder=folder))
    return copied


def test_a_file_arrives_whole_under_its_name(tmp_path: Path, source: Path) -> None:
    """All bytes are there, nothing else is, and progress was told up to the end."""
    folder = PurePosixPath(tmp_path / "far")
    events, (copied,) = collect(send_files(Flaky(), [(source, "sub/m.gguf")], folder=folder))
    steps = [event for event in events if isinstance(event, Progress)]
    assert target(tmp_path).read_bytes() == DATA
    assert list(target(tmp_path).parent.iterdir()) == [target(tmp_path)]
    assert copied.sent == len(DATA)
    assert (steps[-1].done, steps[-1].total) == (len(DATA), len(DATA))


def test_a_broken_copy_goes_on_where_it_was(tmp_path: Path, source: Path) -> None:
    """What has arrived is not sent again, and nothing has the final name before the end."""
    with pytest.raises(HostUnreachableError):
        send(tmp_path, source, Flaky(breaks_at=4))
    assert not target(tmp_path).exists()

    folder = PurePosixPath(tmp_path / "far")
    events, (copied,) = collect(send_files(Flaky(), [(source, "sub/m.gguf")], folder=folder))

    assert copied.sent == len(DATA) - 4 * 1024
    assert any(isinstance(event, Note) and "4,096 bytes" in event.text for event in events)
    assert target(tmp_path).read_bytes() == DATA


def test_what_is_there_is_only_verified(tmp_path: Path, source: Path) -> None:
    """A second run sends nothing."""
    first = send(tmp_path, source, Flaky())
    again = Flaky()
    second = send(tmp_path, source, again)
    assert (second.sha256, second.sent, again.pieces) == (first.sha256, 0, 0)


def test_another_file_under_the_name_is_left_alone(tmp_path: Path, source: Path) -> None:
    """It is told, not overwritten, whatever its size."""
    target(tmp_path).parent.mkdir(parents=True)
    target(tmp_path).write_bytes(bytes(len(DATA)))
    with pytest.raises(CopyDiffersError, match="is another file than here"):
        send(tmp_path, source, Flaky())
    assert target(tmp_path).read_bytes() == bytes(len(DATA))


def test_what_arrives_wrong_never_gets_the_name(tmp_path: Path, source: Path) -> None:
    """The hash finds a changed byte; the part is removed so that a repeat starts afresh."""
    with pytest.raises(CopyDiffersError, match="arrived with SHA-256"):
        send(tmp_path, source, Flaky(spoils=True))
    assert list(target(tmp_path).parent.iterdir()) == []
    assert send(tmp_path, source, Flaky()).sent == len(DATA)


def test_a_part_of_another_file_is_found_out(tmp_path: Path, source: Path) -> None:
    """A part left by something else fails the hash; one that is too long is not even tried."""
    part = target(tmp_path).with_name("m.gguf.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 100)
    with pytest.raises(CopyDiffersError, match="arrived with SHA-256"):
        send(tmp_path, source, Flaky())
    part.write_bytes(b"x" * (len(DATA) + 1))
    assert send(tmp_path, source, Flaky()).sent == len(DATA)


def test_two_senders_do_not_mix(tmp_path: Path, source: Path) -> None:
    """If the part has grown by another hand, the second sender stops and says so."""

    class Other(Flaky):
        def run(self, command: Command, *, timeout: float, check: bool = True) -> CommandResult:
            if "cat >> " in command.shown() and self.pieces == 2:
                with Path(command.plain_argv()[4]).open("ab") as part:
                    part.write(b"other")
            return super().run(command, timeout=timeout, check=check)

    with pytest.raises(CopyDiffersError, match="somebody else sends it"):
        send(tmp_path, source, Other())
    assert not target(tmp_path).exists()


def test_too_little_space_is_told_before_anything_is_sent(tmp_path: Path, source: Path) -> None:
    """Need and free space are both in the error."""
    remote = Flaky(full=True)
    with pytest.raises(DiskFullError) as caught:
        send(tmp_path, source, remote)
    assert (caught.value.need, caught.value.free) == (len(DATA), 1024)
    assert remote.pieces == 0


def test_a_disk_that_fills_up_keeps_what_came(tmp_path: Path, source: Path) -> None:
    """The write error becomes a line about space; a repeat goes on."""

    class Filling(Flaky):
        def run(self, command: Command, *, timeout: float, check: bool = True) -> CommandResult:
            if "cat >> " in command.shown() and self.pieces == 3:
                words = list(command.argv)
                words[4] = "/dev/full"
                command = type(command)(tuple(words), stdin=b"x")
                words[5] = "0"
                command = type(command)(tuple(words), stdin=b"x")
            return super().run(command, timeout=timeout, check=check)

    with pytest.raises(DiskFullError):
        send(tmp_path, source, Filling())
    assert send(tmp_path, source, Flaky()).sent == len(DATA) - 3 * 1024


def test_a_link_is_followed(tmp_path: Path, source: Path) -> None:
    """Of a file that is linked from the hub's cache the bytes are sent, not the link."""
    link = tmp_path / "link.gguf"
    link.symlink_to(source)
    copied = send(tmp_path, link, Flaky())
    assert copied.sent == len(DATA)
    assert not target(tmp_path).is_symlink()
    assert target(tmp_path).read_bytes() == DATA


def test_an_empty_file_arrives_too(tmp_path: Path) -> None:
    """Nothing to send is no reason to send no file."""
    path = tmp_path / "empty"
    path.write_bytes(b"")
    send(tmp_path, path, Flaky())
    assert target(tmp_path).read_bytes() == b""


def test_workers_beside_the_head_need_no_copy(tmp_path: Path, source: Path) -> None:
    """They read what the head reads, which is said; a host that is off is an error."""
    seams = World(tmp_path).seams()

    def sending(*workers: str) -> Workflow[dict[str, tuple[model_copies.Copied, ...]]]:
        return send_to_workers(seams, workers, [source], root=tmp_path, below="o/n")

    events, copies = collect(sending("local:2", "local"))
    assert copies == {}
    text = "nothing sent to local:2, local: on this machine the files are here"
    assert events == [Note(text)]
    with pytest.raises(HostUnreachableError):
        drain(sending("10.20.20.9"))
