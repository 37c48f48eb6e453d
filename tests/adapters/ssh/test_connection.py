"""Reaching a server, and telling whether it is the right one."""

from __future__ import annotations

import socket
import subprocess
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ggufcluster.errors import (
    HostKeyError,
    HostUnreachableError,
)
from tests.adapters.sshd import SshServer, free_port, make_key, say_hello

if TYPE_CHECKING:
    from pathlib import Path


def printed_fingerprint(key: Path) -> str:
    """Return a key's fingerprint as ssh-keygen prints it."""
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", key], check=True, capture_output=True, text=True
    )
    return shown.stdout.split()[1]


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
