"""What only a host behind SSH does: keys, host keys, jumps, lost connections."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.ssh import SshRemote, find_target
from ggufcluster.core.command import command, script
from ggufcluster.core.worker_address import SshWorker
from ggufcluster.errors import (
    AuthenticationError,
    ConfigError,
    HostError,
    HostKeyError,
    HostUnreachableError,
    RemoteCommandError,
)
from tests.adapters.sshd import SshServer, free_port, is_gone, make_key, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.ssh_config import SshTarget


def say_hello(target: SshTarget, *, accept_new: bool = False, wait: float = 10.0) -> str:
    """Connect, run one command and return what it printed."""
    with closing(SshRemote(target, accept_new_host_keys=accept_new, wait=wait)) as remote:
        return remote.run(command("echo", "hello"), timeout=20).stdout


def printed_fingerprint(key: Path) -> str:
    """Return a key's fingerprint as ssh-keygen prints it."""
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True
    )
    return shown.stdout.split()[1]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run an SSH agent that holds no key."""
    path = tmp_path / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    wait_for(path.exists, what="the agent")
    yield
    process.terminate()
    process.wait()


def test_wrong_key_is_refused_by_name(sshd: SshServer, tmp_path: Path) -> None:
    """A key that the host does not take is an authentication error that names the key's file."""
    wrong = make_key(tmp_path / "wrong")

    with pytest.raises(AuthenticationError) as caught:
        say_hello(sshd.target(identities=(wrong,)))

    assert caught.value.tried == (str(wrong),)
    assert "PRIVATE KEY" not in str(caught.value)


def test_keys_are_tried_in_turn(sshd: SshServer, tmp_path: Path) -> None:
    """Missing, broken and wrong keys are passed over until one is taken."""
    broken = tmp_path / "broken"
    broken.write_text("no key")
    keys = (tmp_path / "missing", broken, make_key(tmp_path / "wrong"), sshd.client_key)

    assert say_hello(sshd.target(identities=keys)) == "hello\n"


def test_what_could_not_be_offered_is_told(sshd: SshServer, tmp_path: Path) -> None:
    """The error says of each key why it did not serve; the way out of a passphrase is named."""
    broken = tmp_path / "broken"
    broken.write_text("no key")
    locked = make_key(tmp_path / "locked", passphrase="open sesame")

    with pytest.raises(AuthenticationError) as caught:
        say_hello(sshd.target(identities=(tmp_path / "missing", broken, locked)))

    missing_note, broken_note, locked_note = caught.value.tried
    assert "no such file" in missing_note
    assert "not readable as a private key" in broken_note
    assert "ssh-add" in locked_note


def test_too_many_wrong_keys(sshd: SshServer, tmp_path: Path) -> None:
    """A server that hangs up after several wrong keys is an authentication error that says so."""
    wrong = tuple(make_key(tmp_path / f"wrong{number}") for number in range(8))

    with pytest.raises(AuthenticationError) as caught:
        say_hello(sshd.target(identities=wrong))

    assert caught.value.tried[-1] == "the server hung up"


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("identities_only", [False, True])
def test_agent_opens_a_locked_key(
    sshd: SshServer, tmp_path: Path, *, identities_only: bool
) -> None:
    """A key behind a passphrase works through the agent, with IdentitiesOnly too."""
    subprocess.run(["ssh-add", "-q", sshd.client_key], check=True, capture_output=True)
    locked = tmp_path / "locked"
    locked.with_suffix(".pub").write_text(sshd.client_key.with_suffix(".pub").read_text())
    target = replace(
        sshd.target(identities=(locked,), use_agent=True), identities_only=identities_only
    )

    assert say_hello(target) == "hello\n"


@pytest.mark.usefixtures("agent")
def test_agent_keys_of_others_stay_at_home(sshd: SshServer, tmp_path: Path) -> None:
    """With IdentitiesOnly an agent's other keys are not offered."""
    subprocess.run(["ssh-add", "-q", sshd.client_key], check=True, capture_output=True)
    target = replace(
        sshd.target(identities=(tmp_path / "none",), use_agent=True), identities_only=True
    )

    with pytest.raises(AuthenticationError):
        say_hello(target)


def test_unknown_host_key_is_refused(own_sshd: SshServer) -> None:
    """An unknown host key is refused with the fingerprint ssh-keygen shows; nothing is written."""
    own_sshd.known_hosts.unlink()

    with pytest.raises(HostKeyError) as caught:
        say_hello(own_sshd.target())

    assert not caught.value.changed
    assert caught.value.fingerprint == printed_fingerprint(own_sshd.folder / "host_key.pub")
    assert not own_sshd.known_hosts.exists()


def test_new_host_key_is_accepted_on_demand(own_sshd: SshServer) -> None:
    """On demand an unknown key is added under its port, so that the next strict call works."""
    other = "# a comment\nother.example ssh-ed25519 AAAA"
    own_sshd.known_hosts.write_text(other)

    assert say_hello(own_sshd.target(), accept_new=True) == "hello\n"
    assert say_hello(own_sshd.target()) == "hello\n"
    lines = own_sshd.known_hosts.read_text().splitlines()
    assert lines[:2] == other.splitlines()
    assert [line.split()[0] for line in lines[2:]] == [f"[127.0.0.1]:{own_sshd.port}"]


def test_accepted_key_makes_a_private_file(own_sshd: SshServer, tmp_path: Path) -> None:
    """A known_hosts file that has to be made, and its folder, are for the user only."""
    path = tmp_path / "home" / ".ssh" / "known_hosts"

    say_hello(replace(own_sshd.target(), known_hosts=(str(path),)), accept_new=True)

    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("accept_new", [False, True])
def test_changed_host_key_is_always_refused(own_sshd: SshServer, *, accept_new: bool) -> None:
    """A host key that differs from the known one is refused even when new ones are accepted."""
    own_sshd.stop()
    own_sshd.new_host_key()
    own_sshd.start()
    before = own_sshd.known_hosts.read_text()

    with pytest.raises(HostKeyError) as caught:
        say_hello(own_sshd.target(), accept_new=accept_new)

    assert caught.value.changed
    assert own_sshd.known_hosts.read_text() == before


def test_hashed_known_hosts_are_understood(own_sshd: SshServer) -> None:
    """Names hashed by ssh-keygen -H are found, and a changed key behind one is noticed."""
    subprocess.run(
        ["ssh-keygen", "-q", "-H", "-f", own_sshd.known_hosts], check=True, capture_output=True
    )
    assert "127.0.0.1" not in own_sshd.known_hosts.read_text()

    assert say_hello(own_sshd.target()) == "hello\n"
    own_sshd.stop()
    own_sshd.new_host_key()
    own_sshd.start()
    with pytest.raises(HostKeyError) as caught:
        say_hello(own_sshd.target(), accept_new=True)
    assert caught.value.changed


def test_host_known_by_another_key_type(own_sshd: SshServer) -> None:
    """A server with several host keys is asked for the one that is known."""
    rsa = make_key(own_sshd.folder / "rsa_key", kind="rsa")
    with (own_sshd.folder / "sshd_config").open("a") as config:
        config.write(f"HostKey {rsa}\n")
    own_sshd.stop()
    own_sshd.start()
    kind, key = rsa.with_suffix(".pub").read_text().split()[:2]
    own_sshd.known_hosts.write_text(f"[127.0.0.1]:{own_sshd.port} {kind} {key}\n")

    assert say_hello(own_sshd.target()) == "hello\n"


def test_refused_port_is_unreachable(tmp_path: Path) -> None:
    """A port where nobody listens is told at once, with the port."""
    server = SshServer(tmp_path, port=free_port())

    with pytest.raises(HostUnreachableError, match=f"refused.*port {server.port}"):
        say_hello(server.target())


def test_name_that_does_not_resolve(sshd: SshServer) -> None:
    """A name that no resolver knows is told as such."""
    with pytest.raises(HostUnreachableError, match="does not resolve"):
        say_hello(sshd.target(host="no-such-host.invalid"))


def test_silent_server_is_given_up(tmp_path: Path) -> None:
    """A listener that takes connections and never greets is given up within the wait."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = SshServer(tmp_path, port=listener.getsockname()[1])

        with pytest.raises(HostUnreachableError, match=f"no SSH on port {server.port}"):
            say_hello(server.target(), wait=0.5)


def test_server_that_is_not_ssh(tmp_path: Path) -> None:
    """A listener that speaks something else is told as no SSH."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = SshServer(tmp_path, port=listener.getsockname()[1])
        thread = threading.Thread(target=_answer_in_http, args=(listener,))
        thread.start()

        with pytest.raises(HostUnreachableError, match="no SSH on port"):
            say_hello(server.target(), wait=2)
        thread.join()


def _answer_in_http(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_frozen_server_is_given_up(own_sshd: SshServer) -> None:
    """A server that stops answering after the login is given up within the wait."""
    with closing(SshRemote(own_sshd.target(), wait=1)) as remote:
        remote.connect()
        frozen = (*own_sshd.listener_pids(), *own_sshd.session_pids())
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)

        with pytest.raises(HostUnreachableError, match="no SSH on port"):
            remote.run(command("true"), timeout=5)
    assert len(frozen) > 1


def test_connection_lost_while_a_command_runs(own_sshd: SshServer, tmp_path: Path) -> None:
    """A connection that dies under a command is unreachable, long before the deadline; the
    command is not run again.
    """
    runs = tmp_path / "runs"
    with closing(SshRemote(own_sshd.target())) as remote:
        lines = remote.stream(
            script('echo run >> "$1"; echo began; exec sleep 300', str(runs)), quiet_timeout=200
        )
        assert next(lines) == "began"
        own_sshd.stop()

        with pytest.raises(HostUnreachableError, match="lost while a command ran"):
            next(lines)
        assert runs.read_text() == "run\n"


def test_dead_connection_is_opened_anew(own_sshd: SshServer) -> None:
    """After a server's restart the next command works without further ado."""
    with closing(SshRemote(own_sshd.target())) as remote:
        remote.connect()
        own_sshd.stop()
        own_sshd.start()

        assert remote.run(command("echo", "back"), timeout=20).stdout == "back\n"


def test_server_gone_for_good(own_sshd: SshServer) -> None:
    """When it cannot be opened anew, the host is unreachable."""
    with closing(SshRemote(own_sshd.target())) as remote:
        remote.connect()
        own_sshd.stop()

        with pytest.raises(HostUnreachableError, match="refused"):
            remote.run(command("true"), timeout=20)


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
        assert remote.run(command("echo", "far"), timeout=20).stdout == "far\n"
        remote.put(tmp_path / "source", PurePosixPath(tmp_path / "target"))
        assert remote.peer_address == "127.0.0.1"
        assert remote.own_address == "127.0.0.1"
    assert (tmp_path / "target").read_bytes() == (tmp_path / "source").read_bytes()


def test_every_hop_is_checked(sshd: SshServer, own_sshd: SshServer) -> None:
    """An unknown key of a jump host is refused, as is one of the host behind it."""
    own_sshd.known_hosts.write_text("")

    for target in (
        sshd.target(jumps=(own_sshd.target(),)),
        own_sshd.target(jumps=(sshd.target(),)),
    ):
        with pytest.raises(HostKeyError):
            say_hello(target)


def test_jump_host_without_a_way(sshd: SshServer, tmp_path: Path) -> None:
    """A jump host that gets no connection is told together with where to."""
    server = SshServer(tmp_path, port=free_port())
    target = server.target(jumps=(sshd.target(),))

    with pytest.raises(HostUnreachableError, match=f"jump host.*port {server.port}"):
        say_hello(target)


def test_errors_hold_no_key(own_sshd: SshServer, caplog: pytest.LogCaptureFixture) -> None:
    """No error and no log line, debugging included, holds a private key or its passphrase."""
    caplog.set_level(0)
    locked = make_key(own_sshd.folder / "locked", passphrase="open sesame")
    errors: list[HostError] = []
    for keys in ((locked,), (make_key(own_sshd.folder / "wrong"),)):
        with pytest.raises(AuthenticationError) as caught:
            say_hello(own_sshd.target(identities=keys))
        errors.append(caught.value)

    body = own_sshd.client_key.read_text().splitlines()[1]
    text = caplog.text + "".join(repr(vars(error)) for error in errors)
    assert body not in text
    assert "open sesame" not in text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_configuration_decides_how_a_host_is_reached(own_sshd: SshServer, home: Path) -> None:
    """An alias in ~/.ssh/config, in an included file at that, is enough to log in."""
    (home / ".ssh" / "config").write_text("Include sparks/*.conf\nHost *\n  Port 1\n")
    (home / ".ssh" / "sparks").mkdir()
    (home / ".ssh" / "sparks" / "one.conf").write_text(
        f"Host spark\n  HostName 127.0.0.1\n  Port {own_sshd.port}\n"
        f"  IdentityFile {own_sshd.client_key}\n"
        f"  UserKnownHostsFile {own_sshd.known_hosts}\n"
    )

    target = find_target(SshWorker("spark"))

    assert str(target).endswith("@spark")
    assert say_hello(target) == "hello\n"


def test_configuration_cannot_switch_the_check_off(own_sshd: SshServer, home: Path) -> None:
    """StrictHostKeyChecking no does not make an unknown key known."""
    (home / ".ssh" / "config").write_text(
        f"Host *\n  StrictHostKeyChecking no\n  IdentityFile {own_sshd.client_key}\n"
        "  UserKnownHostsFile /dev/null\n"
    )

    with pytest.raises(HostKeyError):
        say_hello(find_target(SshWorker("127.0.0.1", port=own_sshd.port)))


def test_broken_configuration_is_told(home: Path) -> None:
    """A configuration that cannot be parsed is an error of configuration."""
    (home / ".ssh" / "config").write_text("Host 'never closed\n")

    with pytest.raises(ConfigError):
        find_target(SshWorker("spark"))


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
