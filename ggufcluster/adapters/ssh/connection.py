"""From nothing to a checked, logged-in SSH transport."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko

from ggufcluster.adapters.ssh.authentication import authenticate
from ggufcluster.adapters.ssh.files import add_known_host, read_known_hosts
from ggufcluster.core.known_hosts import Verdict, fingerprint, judge, key_types_of, known_line
from ggufcluster.errors import HostKeyError, HostUnreachableError

if TYPE_CHECKING:
    from ggufcluster.core.ssh_config import SshTarget

KEEP_ALIVE_SECONDS = 15
# Unanswered data, keep-alives among it, ends a connection after this.
_DEAD_LINK_SECONDS = 45
_BROKEN = (paramiko.SSHException, EOFError, OSError)
_RSA_SIGNATURES = ("rsa-sha2-512", "rsa-sha2-256")


def addresses_of(target: SshTarget) -> list[tuple[str, int]]:
    """Return the (IP address, port) pairs of a host, IPv4 first: llama.cpp's RPC has no IPv6.

    Raises:
        HostUnreachableError: The name does not resolve on this machine.
    """
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        reason = f"the name {target.host} does not resolve"
        raise HostUnreachableError(target.name, reason=reason) from None
    found.sort(key=lambda info: info[0] != socket.AF_INET)
    return [(str(info[4][0]), target.port) for info in found]


def open_tcp(target: SshTarget, *, wait: float) -> socket.socket:
    """Connect to the first address of a host that answers, each within `wait` seconds.

    Raises:
        HostUnreachableError: None did; it tells what happened with the last.
    """
    reason = ""
    for address in addresses_of(target):
        try:
            link = socket.create_connection(address, timeout=wait)
        except TimeoutError:
            reason = f"no answer on port {target.port} within {wait:g} s"
        except OSError as error:
            reason = f"{error.strerror or error} (port {target.port})"
        else:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_LINK_SECONDS * 1000)
            return link
    raise HostUnreachableError(target.name, reason=reason)


def open_tunnel(hop: paramiko.Transport, target: SshTarget, *, wait: float) -> paramiko.Channel:
    """Connect to a host through one that is logged in to.

    Raises:
        HostUnreachableError: That one gets no connection.
    """
    try:
        return hop.open_channel(
            "direct-tcpip", (target.host, target.port), ("127.0.0.1", 0), timeout=wait
        )
    except _BROKEN as error:
        reason = f"the jump host gets no connection to {target.host} port {target.port}: {error}"
        raise HostUnreachableError(target.name, reason=reason) from None


def log_in(
    link: socket.socket | paramiko.Channel, target: SshTarget, *, accept_new: bool, wait: float
) -> paramiko.Transport:
    """Speak SSH over a link: key exchange, check of the host key, login.

    Raises:
        HostUnreachableError: There is no SSH server at the other end, or it stopped answering.
        HostKeyError: Its key is unknown (and `accept_new` unset) or has changed.
        AuthenticationError: It took no key.
    """
    transport = paramiko.Transport(link)
    try:
        _shake_hands(transport, target, wait=wait)
        _check_host_key(transport.get_remote_server_key(), target, accept_new=accept_new)
        authenticate(transport, target, wait=wait)
    except BaseException:
        transport.close()
        raise
    transport.set_keepalive(KEEP_ALIVE_SECONDS)
    return transport


def _shake_hands(transport: paramiko.Transport, target: SshTarget, *, wait: float) -> None:
    transport.banner_timeout = wait
    transport.handshake_timeout = wait
    transport.auth_timeout = wait
    transport.channel_timeout = wait
    _prefer(transport, target)
    done = threading.Event()
    transport.start_client(event=done)
    done.wait(2 * wait)
    if not done.is_set() or not transport.is_active():
        error = transport.get_exception() or f"no key exchange within {2 * wait:g} s"
        reason = f"no SSH on port {target.port}: {error or type(error).__name__}"
        raise HostUnreachableError(target.name, reason=reason)


def _prefer(transport: paramiko.Transport, target: SshTarget) -> None:
    options = transport.get_security_options()
    known = key_types_of(read_known_hosts(target.known_hosts), target.key_name)
    wanted = [name for kind in known for name in _signatures(kind) if name in options.key_types]
    # A key of a type not known yet would look like a changed one.
    options.key_types = tuple(dict.fromkeys([*wanted, *options.key_types]))
    # AES-GCM is the fastest here: one pass instead of cipher and MAC.
    options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)


def _signatures(key_type: str) -> tuple[str, ...]:
    return _RSA_SIGNATURES if key_type == "ssh-rsa" else (key_type,)


def _check_host_key(key: paramiko.PKey, target: SshTarget, *, accept_new: bool) -> None:
    kind, text = key.get_name(), key.get_base64()
    known = read_known_hosts(target.known_hosts)
    verdict = judge(known, target.key_name, key_type=kind, key=text)
    if verdict is Verdict.KNOWN:
        return
    own_file = target.known_hosts[0]
    if verdict is Verdict.UNKNOWN and accept_new:
        line = known_line(target.key_name, key_type=kind, key=text)
        add_known_host(Path(own_file), line)
        return
    raise HostKeyError(
        target.name,
        fingerprint=fingerprint(key.asbytes()),
        known_hosts=own_file,
        changed=verdict is Verdict.CHANGED,
    )
