"""Commands and copies over connections that break, jump or talk too much."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path, PurePosixPath

import pytest

from ggufcluster.adapters.ssh import SshRemote
from ggufcluster.core.command import command, script
from ggufcluster.errors import (
    HostUnreachableError,
    RemoteCommandError,
)
from tests.adapters.sshd import SshServer, say_hello
from tests.waiting import PATIENCE, is_gone, wait_for


def freeze(server: SshServer) -> set[int]:
    """Stop every process of a server, those too that one began before it was stopped itself."""
    frozen: set[int] = set()
    while found := {*server.listener_pids(), *server.session_pids()} - frozen:
        for pid in found:
            with suppress(ProcessLookupError):  # login has helpers that end with it
                os.kill(pid, signal.SIGSTOP)
        frozen |= found
    return frozen


def test_frozen_server_is_given_up(own_sshd: SshServer) -> None:
    """A server that stops answering after the login is given up within the wait."""
    with closing(SshRemote(own_sshd.target())) as remote:
        remote.connect()
        remote._wait = 1.0
        frozen = freeze(own_sshd)

        with pytest.raises(HostUnreachableError, match="no SSH on port"):
            remote.run(command("true"), timeout=5)
    assert len(frozen) > 1


def test_connection_lost_while_a_command_runs(own_sshd: SshServer, tmp_path: Path) -> None:
    """A connection that dies under a command is unreachable, long before the deadline; the
    command is not run again, and is ended on the host.
    """
    pids = tmp_path / "pids"
    with closing(SshRemote(own_sshd.target())) as remote:
        lines = remote.stream(
            script('echo $$ >> "$1"; echo began; exec sleep 300', str(pids)),
            quiet_timeout=200,
        )
        assert next(lines) == "began"
        own_sshd.stop()

        with pytest.raises(HostUnreachableError, match="lost while a command ran"):
            next(lines)
    (pid,) = pids.read_text().split()
    wait_for(partial(is_gone, int(pid)), what="the end of the command")


# Runs as a process of its own, to be killed.
HEAD = """
from ggufcluster.adapters.ssh import SshRemote
from ggufcluster.core.command import script
from ggufcluster.core.ssh_config import SshTarget

text = 'trap "" TERM; echo $$ > "$1.part"; mv "$1.part" "$1"; while :; do sleep 1; done'
SshRemote({target!r}).run(script(text, {path!r}), timeout=99)
"""


def test_killed_head_leaves_no_command(own_sshd: SshServer, tmp_path: Path) -> None:
    """A head that is killed outright leaves nothing running on the host, stubborn or not."""
    path = tmp_path / "pid"
    program = HEAD.format(target=own_sshd.target(), path=str(path))
    head = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[3])
    wait_for(path.exists, what="the command")
    head.kill()
    head.wait()

    wait_for(partial(is_gone, int(path.read_text())), what="the end of the command")


def test_dead_connection_is_opened_anew(own_sshd: SshServer) -> None:
    """After a server's restart the next command works without further ado."""
    with closing(SshRemote(own_sshd.target())) as remote:
        remote.connect()
        own_sshd.stop()
        own_sshd.start()

        assert remote.run(command("echo", "back"), timeout=PATIENCE).stdout == "back\n"


def test_server_gone_for_good(own_sshd: SshServer) -> None:
    """When it cannot be opened anew, the host is unreachable."""
    with closing(SshRemote(own_sshd.target())) as remote:
        remote.connect()
        own_sshd.stop()

        with pytest.raises(HostUnreachableError, match="refused"):
            remote.run(command("true"), timeout=PATIENCE)


def test_copy_cut_off_leaves_nothing(own_sshd: SshServer, tmp_path: Path) -> None:
    """When the connection dies in the middle of a copy, the host itself removes the part."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(os.urandom(30_000_000))
    folder = tmp_path / "engines"
    sent = 0

    def cut(count: int) -> None:
        nonlocal sent
        sent += count
        if sent > 10_000_000:
            own_sshd.stop()

    with (
        closing(SshRemote(own_sshd.target())) as remote,
        pytest.raises(HostUnreachableError),
    ):
        remote.put_tree(source, PurePosixPath(folder / "id"), on_bytes=cut)

    wait_for(lambda: list(folder.iterdir()) == [], what="the removal of the part")


def test_login_shell_that_runs_nothing(own_sshd: SshServer) -> None:
    """An account whose shell refuses commands is told with what it says."""
    with (own_sshd.folder / "sshd_config").open("a") as config:
        config.write("ForceCommand echo This account is not available.\n")
    own_sshd.stop()
    own_sshd.start()

    with pytest.raises(HostUnreachableError, match="This account is not available"):
        say_hello(own_sshd.target())


def test_start_up_noise_is_no_output(own_sshd: SshServer) -> None:
    """What a shell's start-up files print does not get into a command's output."""
    with (own_sshd.folder / "sshd_config").open("a") as config:
        config.write('ForceCommand echo Welcome!; eval "$SSH_ORIGINAL_COMMAND"\n')
    own_sshd.stop()
    own_sshd.start()

    assert say_hello(own_sshd.target()) == "hello\n"


def test_addresses_of_a_direct_connection(ssh: SshRemote) -> None:
    """Both ends of a direct connection are told."""
    assert (ssh.own_address, ssh.peer_address) == ("127.0.0.1", "127.0.0.1")


def test_jump_through_a_second_server(sshd: SshServer, own_sshd: SshServer, tmp_path: Path) -> None:
    """A host behind another is reached through it, and copies go that way too."""
    target = own_sshd.target(jumps=(sshd.target(),))
    (tmp_path / "source").write_bytes(os.urandom(3_000_000))

    with closing(SshRemote(target)) as remote:
        assert remote.run(command("echo", "far"), timeout=PATIENCE).stdout == "far\n"
        remote.put(tmp_path / "source", PurePosixPath(tmp_path / "target"))
        assert remote.peer_address == "127.0.0.1"
        assert remote.own_address == "127.0.0.1"
    assert (tmp_path / "target").read_bytes() == (tmp_path / "source").read_bytes()


def test_failing_put_is_told_over_ssh(ssh: SshRemote, tmp_path: Path) -> None:
    """A receiver that cannot make its folder is told with the host's own words."""
    (tmp_path / "source").write_text("x")

    with pytest.raises(RemoteCommandError, match="mkdir"):
        ssh.put(tmp_path / "source", PurePosixPath("/proc/no/such/place"))


def test_ended_command_is_gone_on_the_host(ssh: SshRemote, tmp_path: Path) -> None:
    """Ctrl-C while a command runs ends it on the host."""
    text = 'echo $$ > "$1"; echo began; sleep 300'
    lines = ssh.stream(script(text, str(tmp_path / "pid")), quiet_timeout=None)
    assert next(lines) == "began"

    with pytest.raises(KeyboardInterrupt):
        lines.throw(KeyboardInterrupt)  # type: ignore[attr-defined]

    pid = int((tmp_path / "pid").read_text())
    wait_for(partial(is_gone, pid), what="the end of the command")
