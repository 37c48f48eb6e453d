"""Addresses of this machine on which something is to listen."""

from __future__ import annotations

import errno
import socket


def try_listen(host: str, port: int) -> None:
    """Listen on an address for a moment, to learn now whether a server will be able to.

    Raises:
        OSError: It cannot be listened on; EADDRINUSE if somebody else does.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError:
        raise OSError(errno.EINVAL, "no host name") from None
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as listener:
        # As servers do: a connection that was closed a moment ago is no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()


def free_port(host: str = "127.0.0.1") -> int:
    """Find a port on which nobody listens at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
