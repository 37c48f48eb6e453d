"""Small files fetched whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.http import fetch_small
from ggufcluster.core.secret import Secret
from ggufcluster.errors import TransferError
from ggufcluster.testing import Fault, HubServer

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = b"{}" * 500


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """A hub with one small file."""
    with HubServer() as server:
        server.publish("me/m", {"config.json": DATA})
        yield server


def address(hub: HubServer, name: str = "config.json") -> str:
    """Return where the hub has a file."""
    return f"{hub.root}/me/m/resolve/main/{name}"


def test_a_file_comes_whole(hub: HubServer) -> None:
    """Redirects are followed."""
    assert fetch_small(address(hub), limit=1000) == DATA


def test_a_longer_file_is_refused(hub: HubServer) -> None:
    """Nobody can fill the memory with it."""
    with pytest.raises(TransferError, match=r"config\.json has more than 999 bytes"):
        fetch_small(address(hub), limit=999)


def test_a_refusal_is_told_with_its_status(hub: HubServer) -> None:
    """The name of the file and the server's answer are in the message."""
    with pytest.raises(TransferError, match=r"404 Not Found for none\.json") as caught:
        fetch_small(address(hub, "none.json"), limit=1000)
    assert caught.value.status == 404


@pytest.mark.parametrize("kind", ["short", "reset"])
def test_a_broken_answer_is_told(hub: HubServer, kind: str) -> None:
    """Half a file is none."""
    hub.fail(Fault(kind, after=10))
    with pytest.raises(TransferError):
        fetch_small(address(hub), limit=1000)


def test_the_token_goes_to_the_hub_only(hub: HubServer) -> None:
    """The file server that it leads to never sees it."""
    hub.private.add("me/m")
    fetch_small(address(hub), limit=1000, token=Secret(hub.token))
    seen = [(asked.origin, "authorization" in asked.headers) for asked in hub.asked]
    assert seen == [("hub", True), ("files", False)]


def test_nobody_there_and_no_address() -> None:
    """Both are errors of ours."""
    for url in ("http://127.0.0.1:9/x", "http://a:port/x", "ftp://127.0.0.1/x"):
        with pytest.raises(TransferError):
            fetch_small(url, limit=10)
