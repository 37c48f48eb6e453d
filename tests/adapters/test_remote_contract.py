"""What every `Remote` does alike: this machine, and one behind SSH."""

from __future__ import annotations

import os
import re
import subprocess
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.command import Command, command, script
from ggufcluster.core.secret import Secret
from ggufcluster.errors import CommandTimeoutError, DiskFullError, RemoteCommandError
from tests.waiting import PATIENCE, is_alive, is_gone, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.adapters.remote import Remote

SECRET = "only-for-the-program"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with room for a mebibyte and a dozen files."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = "size=1m,nr_inodes=12"
    mount = ["mount", "-t", "tmpfs", "-o", options, "ggufcluster-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("needs to mount a small tmpfs, which takes root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def make_tree(folder: Path) -> Path:
    """Make an engine-like folder: programs, libraries, links."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "empty").mkdir(parents=True)
    (folder / "bin" / "server").write_bytes(os.urandom(3_000_000))
    (folder / "bin" / "server").chmod(0o755)
    (folder / "lib" / "libggml.so.0.1").write_bytes(b"library")
    (folder / "lib" / "libggml.so.0.1").chmod(0o640)
    (folder / "lib" / "libggml.so").symlink_to("libggml.so.0.1")
    (folder / "lib" / "twin").hardlink_to(folder / "lib" / "libggml.so.0.1")
    (folder / "a name 'with' \"marks\" $HOME").write_text("x")
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """Describe a folder: mode and contents, or the text of a link."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = (0, str(path.readlink()))
        else:
            contents = path.read_bytes() if path.is_file() else b""
            found[name] = (path.stat().st_mode & 0o7777, contents)
    return found


def test_run_returns_both_outputs_and_the_exit_code(remote: Remote) -> None:
    """A command that fails unchecked tells its exit code and both outputs apart."""
    result = remote.run(script("echo out; echo ä >&2; exit 3"), timeout=PATIENCE, check=False)

    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "ä\n")


def test_run_raises_on_failure_when_checked(remote: Remote) -> None:
    """A checked command that fails raises with host, code and stderr."""
    with pytest.raises(RemoteCommandError) as caught:
        remote.run(script("echo why >&2; exit 4"), timeout=PATIENCE)

    assert (caught.value.host, caught.value.exit_code) == (remote.name, 4)
    assert caught.value.stderr == "why\n"


@pytest.mark.parametrize(
    ("text", "code"), [("kill -9 $$", 137), ("exit 255", 255), ("no-such-program-here", 127)]
)
def test_exit_codes_are_those_of_a_shell(remote: Remote, text: str, code: int) -> None:
    """A signal, 255 and a missing program give a shell's codes, near and far."""
    assert remote.run(script(text), timeout=PATIENCE, check=False).exit_code == code


def test_arguments_environment_and_folder_arrive_unchanged(remote: Remote, tmp_path: Path) -> None:
    """No quote, blank, newline or dollar sign is touched on the way."""
    odd = "a b\n'c' \"d\" $HOME `id` \\ *"
    asked = Command(
        ("sh", "-c", 'printf "%s|%s|%s" "$1" "$ODD" "$PWD"', "sh", odd),
        env={"ODD": odd},
        cwd=str(tmp_path),
    )

    assert remote.run(asked, timeout=PATIENCE).stdout == f"{odd}|{odd}|{tmp_path}"


def test_stdin_arrives_whole_while_output_flows_back(remote: Remote) -> None:
    """Megabytes of stdin echoed at once come back whole, without a deadlock."""
    data = os.urandom(2_000_000).hex().encode()

    result = remote.run(Command(("cat",), stdin=data), timeout=PATIENCE)

    assert result.stdout.encode() == data


def test_stdin_is_empty_without_any(remote: Remote) -> None:
    """A command that reads stdin ends at once when none was given."""
    assert remote.run(command("cat"), timeout=PATIENCE).stdout == ""


def test_program_may_ignore_its_stdin(remote: Remote) -> None:
    """A program that ends without reading a long stdin is no error."""
    assert remote.run(Command(("true",), stdin=b"x" * 5_000_000), timeout=PATIENCE).exit_code == 0


def test_ten_megabytes_on_both_outputs(remote: Remote) -> None:
    """Much text on stdout and stderr at once is gathered whole, without a deadlock."""
    text = 'i=0; while [ $i -lt 160 ]; do echo "$1"; echo "$1" >&2; i=$((i+1)); done'

    result = remote.run(script(text, "x" * 65535), timeout=120)

    assert (len(result.stdout), len(result.stderr)) == (160 * 65536, 160 * 65536)


def test_timeout_ends_the_whole_process_group(remote: Remote, tmp_path: Path) -> None:
    """After the deadline neither the command nor its children are left, stubborn ones included."""
    pids = tmp_path / "pids"
    text = 'trap \'\' TERM; sleep 300 & echo $! > "$1.part"; echo $$ >> "$1.part"; '
    text += 'mv "$1.part" "$1"; while :; do sleep 1; done'

    # Long enough for the script to get under way, however busy the machine is.
    for seconds in (1.0, 5.0, 25.0, 125.0):
        with pytest.raises(CommandTimeoutError) as caught:
            remote.run(script(text, str(pids)), timeout=seconds)
        assert caught.value.seconds == seconds
        if pids.exists():
            break

    for pid in pids.read_text().split():
        wait_for(partial(is_gone, int(pid)), what=f"the end of {pid}")


def test_background_process_neither_delays_nor_dies(remote: Remote, tmp_path: Path) -> None:
    """A process in a session of its own outlives the command, which returns though the process
    still holds its output.
    """
    text = 'setsid sleep 300 & echo $! > "$1"; echo started'

    try:
        result = remote.run(script(text, str(tmp_path / "pid")), timeout=PATIENCE)
    finally:
        pid = int((tmp_path / "pid").read_text())
        survived = is_alive(pid)
        os.kill(pid, 9)

    assert result.stdout == "started\n"
    assert survived


def test_stream_yields_lines_as_they_come(remote: Remote) -> None:
    """Lines of both outputs come in order and before the command ends."""
    lines = remote.stream(
        script("echo one; echo two >&2; read x < /dev/null; printf 'ü\\r\\nlast'; sleep 1"),
        quiet_timeout=PATIENCE,
    )

    assert list(lines) == ["one", "two", "ü", "last"]


def test_stream_raises_with_the_last_lines(remote: Remote) -> None:
    """A streamed command that fails raises after its last line, which the error repeats."""
    lines = remote.stream(script("echo works; echo breaks; exit 5"), quiet_timeout=PATIENCE)

    assert [next(lines), next(lines)] == ["works", "breaks"]
    with pytest.raises(RemoteCommandError) as caught:
        next(lines)
    assert (caught.value.exit_code, caught.value.stderr) == (5, "works\nbreaks")


def test_stream_gives_up_on_silence(remote: Remote, tmp_path: Path) -> None:
    """A command that falls silent is ended once the limit has passed."""
    text = 'echo $$ > "$1"; sleep 300'
    # Long enough for the script to get under way, however busy the machine is.
    for seconds in (0.5, 5.0, 25.0, 125.0):
        with pytest.raises(CommandTimeoutError):
            next(remote.stream(script(text, str(tmp_path / "pid")), quiet_timeout=seconds))
        if (tmp_path / "pid").exists():
            break
    pid = int((tmp_path / "pid").read_text())
    wait_for(partial(is_gone, pid), what="the end of the command")


def test_stream_closed_early_ends_the_command(remote: Remote, tmp_path: Path) -> None:
    """Whoever stops reading a stream leaves nothing running."""
    text = 'echo $$ > "$1"; while :; do echo tick; sleep 0.1; done'
    lines = remote.stream(script(text, str(tmp_path / "pid")), quiet_timeout=None)

    assert next(lines) == "tick"
    lines.close()  # type: ignore[attr-defined]
    pid = int((tmp_path / "pid").read_text())
    wait_for(partial(is_gone, pid), what="the end of the command")


def test_secrets_reach_the_program_and_nothing_else(
    remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    """The program gets the secret; errors and logs, debugging included, do not."""
    caplog.set_level(0)
    asked = Command(
        ("sh", "-c", 'echo "$KEY $1" >&2; [ "$KEY$1" = "$2$2" ] && exit 9', "sh", Secret(SECRET)),
        env={"KEY": Secret(SECRET)},
    )
    asked = Command((*asked.argv, Secret(SECRET)), env=asked.env)

    with pytest.raises(RemoteCommandError) as failed:
        remote.run(asked, timeout=PATIENCE)
    with pytest.raises(CommandTimeoutError) as slow:
        remote.run(Command(("sh", "-c", "sleep 60", "sh", Secret(SECRET))), timeout=0.5)

    assert failed.value.exit_code == 9
    shown = [str(e.value) + repr(e.value) + repr(vars(e.value)) for e in (failed, slow)]
    assert SECRET not in "".join(shown) + caplog.text


def test_put_copies_whole_with_mode_and_makes_parents(remote: Remote, tmp_path: Path) -> None:
    """A file arrives with contents and mode, in a folder made for it, and is counted."""
    source = tmp_path / "source"
    source.write_bytes(os.urandom(1_234_567))
    source.chmod(0o750)
    target = tmp_path / "new folder" / "deep" / "it's here"
    counts: list[int] = []

    remote.put(source, PurePosixPath(target), on_bytes=counts.append)

    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o7777 == 0o750
    assert sum(counts) == 1_234_567
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_put_replaces_a_file(remote: Remote, tmp_path: Path) -> None:
    """A file that exists is replaced, mode included; an empty one may replace it."""
    (tmp_path / "source").touch(mode=0o600)
    (tmp_path / "target").write_text("old")

    remote.put(tmp_path / "source", PurePosixPath(tmp_path / "target"))

    assert (tmp_path / "target").read_bytes() == b""
    assert (tmp_path / "target").stat().st_mode & 0o7777 == 0o600


def test_put_where_one_may_not_write(remote: Remote, tmp_path: Path) -> None:
    """A parent that is a file is an error which names source and target."""
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(RemoteCommandError, match="target") as caught:
        remote.put(tmp_path / "file", PurePosixPath(tmp_path / "file" / "target"))

    assert caught.value.exit_code != 0


def test_put_tree_keeps_modes_and_links(remote: Remote, tmp_path: Path) -> None:
    """A folder arrives equal: modes, relative links, odd names, empty folders."""
    source = make_tree(tmp_path / "source")
    target = tmp_path / "engines" / "id"
    counts: list[int] = []

    remote.put_tree(source, PurePosixPath(target), on_bytes=counts.append)

    assert snapshot(target) == snapshot(source)
    assert sum(counts) == 3_000_000 + 7 + 7 + 1
    assert [path.name for path in target.parent.iterdir()] == ["id"]


def test_put_tree_leaves_an_existing_target(remote: Remote, tmp_path: Path) -> None:
    """A target that exists keeps what it has, and no partial copy stays beside it."""
    source = make_tree(tmp_path / "source")
    target = tmp_path / "there" / "target"
    target.mkdir(parents=True)
    counts: list[int] = []

    remote.put_tree(source, PurePosixPath(target), on_bytes=counts.append)

    assert list(target.iterdir()) == []
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert counts == []


def test_put_tree_interrupted_leaves_nothing(remote: Remote, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a copy leaves neither target nor partial copy, nor a process."""
    source = make_tree(tmp_path / "source")
    folder = tmp_path / "engines"
    sent = 0

    def interrupt(count: int) -> None:
        nonlocal sent
        sent += count
        if sent > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remote.put_tree(source, PurePosixPath(folder / "id"), on_bytes=interrupt)

    assert list(folder.iterdir()) == []
    assert remote.run(command("echo", "still fine"), timeout=PATIENCE).stdout == "still fine\n"


def test_put_tree_cut_between_two_files_leaves_nothing(remote: Remote, tmp_path: Path) -> None:
    """A copy that ends early where an archive might well end is not published either."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "first").write_text("x")
    (source / "second").write_text("y")

    with pytest.raises(FileNotFoundError):
        remote.put_tree(
            source,
            PurePosixPath(tmp_path / "engines" / "id"),
            on_bytes=lambda _: (source / "second").unlink(),
        )

    assert list((tmp_path / "engines").iterdir()) == []


def test_too_large_copy_is_refused_before_it_begins(
    remote: Remote, tmp_path: Path, small_disk: Path
) -> None:
    """A copy that cannot fit is refused with need and room, nothing sent, nothing left."""
    source = make_tree(tmp_path / "source")
    counts: list[int] = []

    with pytest.raises(DiskFullError) as caught:
        remote.put_tree(source, PurePosixPath(small_disk / "id"), on_bytes=counts.append)

    assert (caught.value.need, caught.value.path) == (3_000_015, str(small_disk))
    assert caught.value.free is not None
    assert 0 < caught.value.free <= 2**20
    assert (counts, list(small_disk.iterdir())) == ([], [])


def test_disk_that_fills_up_during_a_copy(remote: Remote, tmp_path: Path, small_disk: Path) -> None:
    """Space that runs out midway (here: file entries) is a full disk, and the part is removed."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(30):
        (source / str(number)).write_text("x")

    with pytest.raises(DiskFullError):
        remote.put_tree(source, PurePosixPath(small_disk / "id"))

    assert list(small_disk.iterdir()) == []


def test_names_are_for_people(remote: Remote) -> None:
    """A host is called this machine, or by user and host."""
    assert re.fullmatch(r"this machine|[a-z_]+@127\.0\.0\.1", remote.name)


def test_close_twice_is_fine_and_a_later_call_works(remote: Remote) -> None:
    """Closing is final for nobody: the next call opens what it needs."""
    remote.close()
    remote.close()

    assert remote.run(command("echo", "again"), timeout=PATIENCE).stdout == "again\n"
