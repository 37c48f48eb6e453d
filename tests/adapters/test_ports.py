"""Whether something can listen on an address."""

from __future__ import annotations

import errno
import socket

import pytest

from ggufcluster.adapters.ports import try_listen


def test_a_free_port_can_be_listened_on_again_and_again(free_port: int) -> None:
    """A try leaves nothing behind, by number and by name."""
    for host in ("127.0.0.1", "127.0.0.1", "localhost", "0.0.0.0"):
        try_listen(host, free_port)


def test_a_taken_port_is_in_use_only_on_its_address() -> None:
    """Somebody who listens is an obstacle on the same address, not on another one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match="in use") as caught:
            try_listen("127.0.0.1", port)
        assert caught.value.errno == errno.EADDRINUSE
        try_listen("127.0.0.2", port)


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", "a" * 70])
def test_an_address_of_another_machine_is_an_os_error(host: str, free_port: int) -> None:
    """An address that no interface has, and a name of nothing, are told as the system tells it."""
    with pytest.raises(OSError, match=r"\w") as caught:
        try_listen(host, free_port)
    assert caught.value.strerror
    assert caught.value.errno != errno.EADDRINUSE
