"""Bytes that left for each worker."""

from __future__ import annotations

from pathlib import Path

from ggufcluster.core.sockets import bytes_sent, sockets_command

TABLE = Path(__file__).parents[1] / "data" / "sockets" / "ss-6.1.txt"


def test_bytes_are_added_up_over_all_connections() -> None:
    """Of all sockets, those to a worker count, together if there are several."""
    sent = bytes_sent(TABLE.read_text(), ("10.20.20.2:50052", "10.20.20.3:50052", "10.9.9.9:1"))
    assert sent == {"10.20.20.2:50052": 2_500_000, "10.20.20.3:50052": 77, "10.9.9.9:1": 0}


def test_nothing_readable_gives_zeros() -> None:
    """An empty or strange table is no error."""
    assert bytes_sent("", ("a:1",)) == {"a:1": 0}
    assert bytes_sent("Netid State\n\tbytes_acked:5\n", ("a:1",)) == {"a:1": 0}


def test_names_are_never_resolved() -> None:
    """The command asks for numbers, or no endpoint would be found."""
    assert "--numeric" in sockets_command().plain_argv()
