"""The shipped stand-ins."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import pytest

from ggufcluster.adapters.http import read_range
from ggufcluster.adapters.remote import CommandResult, Remote
from ggufcluster.core.command import Command, command
from ggufcluster.core.secret import Secret
from ggufcluster.errors import HostUnreachableError, RemoteCommandError
from ggufcluster.testing import FakeRemote, HubServer, StoredFile
from tests.waiting import wait_for


def test_fake_remote_answers_by_text_and_pattern() -> None:
    """Plain parts and expressions choose an answer; the latest match wins; calls are kept."""
    remote: Remote = (
        fake := FakeRemote()
        .on("uname", "Linux\n")
        .on(re.compile(r"uname -[mr]"), "aarch64\n")
        .on("df", lambda asked: CommandResult(0, asked.shown(), ""))
    )

    assert remote.run(command("uname"), timeout=1).stdout == "Linux\n"
    assert remote.run(command("uname", "-m"), timeout=1).stdout == "aarch64\n"
    assert list(remote.stream(command("df", "-h"), quiet_timeout=None)) == ["df -h"]
    assert fake.shown() == ["uname", "uname -m", "df -h"]


def test_fake_remote_fails_as_a_real_one() -> None:
    """Errors are raised, non-zero codes checked, secrets masked."""
    fake = FakeRemote("spark").on("gone", HostUnreachableError("spark", reason="test"))
    fake.on("bad", CommandResult(3, "", "hunter2 is wrong"))
    asked = Command(("bad", Secret("hunter2")))

    with pytest.raises(HostUnreachableError):
        fake.run(command("gone"), timeout=1)
    with pytest.raises(RemoteCommandError) as caught:
        fake.run(asked, timeout=1)
    assert (caught.value.host, caught.value.stderr) == ("spark", "******** is wrong")
    assert fake.run(asked, timeout=1, check=False).exit_code == 3
    with pytest.raises(RemoteCommandError):
        list(fake.stream(asked, quiet_timeout=None))


def test_fake_remote_refuses_what_nobody_foresaw() -> None:
    """A command without an answer fails the test that ran it."""
    with pytest.raises(AssertionError, match="rm -rf"):
        FakeRemote().run(command("rm", "-rf", "x"), timeout=1)


def test_fake_remote_keeps_files(tmp_path: Path) -> None:
    """Files and trees are kept by path; a tree that is there already stays as it is."""
    fake = FakeRemote()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "program").write_text("1")
    (tmp_path / "tree" / "program").chmod(0o755)
    (tmp_path / "tree" / "link").symlink_to("program")
    counts: list[int] = []

    fake.put(tmp_path / "tree" / "program", PurePosixPath("/one"), on_bytes=counts.append)
    fake.put_tree(tmp_path / "tree", PurePosixPath("/tree"))
    (tmp_path / "tree" / "program").write_text("22")
    fake.put_tree(tmp_path / "tree", PurePosixPath("/tree"))
    fake.close()

    program = StoredFile(b"1", 0o755)
    assert fake.files == {"/one": program, "/tree/program": program, "/tree/link": "program"}
    assert (counts, fake.closed) == ([1], True)


def test_a_hub_holds_its_bytes_back() -> None:
    """It sends exactly so many, falls silent, and sends the rest once it is released."""
    data = bytes(range(256))
    with HubServer() as hub, ThreadPoolExecutor(1) as pool:
        hub.publish("me/model", {"a.gguf": data})
        hub.hold(100)
        reading = pool.submit(read_range, hub.address("me/model", "a.gguf"), 0, 256)
        wait_for(lambda: hub.served == 100, what="the first bytes")
        assert not reading.done()
        hub.release()
        assert reading.result() == data
    assert hub.served == 256
