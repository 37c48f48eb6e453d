"""Every way in which a file server goes wrong, and what must come of it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.hub import HuggingFaceHub
from ggufcluster.errors import (
    ChecksumError,
    RangesIgnoredError,
    RemoteChangedError,
    TransferError,
)
from ggufcluster.testing import Fault, HubServer
from ggufcluster.workflows.download import DownloadRequest, download
from ggufcluster.workflows.events import Note, Progress
from tests.waiting import wait_for
from tests.workflows.downloads import IMPATIENT, POLICY, REPO, Downloader, content, hashes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILES = {"m-Q8_0.gguf": content(600_000)}


@pytest.fixture
def server() -> Iterator[HubServer]:
    """A hub with one file of ten parts."""
    with HubServer() as running:
        running.publish(REPO, FILES)
        yield running


@pytest.fixture
def downloader(server: HubServer, tmp_path: Path) -> Downloader:
    """A downloader of that hub."""
    return Downloader(server, tmp_path / "models", tmp_path / "cache")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("short", times=3, after=1000),
        Fault("reset", times=3, after=1000),
        Fault("stall", times=2, after=1000),
        Fault("trickle", times=1, after=1000),
        Fault("status", times=3, status=500),
        Fault("status", times=3, status=503),
        Fault("status", times=1, status=408),
        Fault("status", times=2, status=403),
        Fault("status", times=1, status=401),
        Fault("resized", times=1),
        Fault("shifted", times=1),
        Fault("corrupt", times=1),
        Fault("chunked", times=None),
        Fault("status", times=1, status=416),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_what_passes_is_mended(server: HubServer, downloader: Downloader, fault: Fault) -> None:
    """After a fault that passes, the file comes out right, with nothing left beside it."""
    downloader.policy = IMPATIENT
    server.fail(fault)
    downloader.run()
    assert downloader.contents() == hashes(FILES)
    assert not (downloader.folder / ".ggufcluster" / "m-Q8_0.gguf.partial").exists()


def test_a_short_body_costs_only_its_rest(server: HubServer, downloader: Downloader) -> None:
    """Bytes that came before the connection broke are not fetched again."""
    server.fail(Fault("short", times=3, after=20_000))
    downloader.run()
    assert server.served == 600_000


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("whole", times=None), RangesIgnoredError),
        (Fault("packed", times=None), RangesIgnoredError),
        (Fault("resized", times=None), RemoteChangedError),
        (Fault("shifted", times=None), RemoteChangedError),
        (Fault("corrupt", times=None), ChecksumError),
        (Fault("status", times=None, status=403), TransferError),
        (Fault("status", times=None, status=404), TransferError),
        (Fault("status", times=None, status=500), TransferError),
        (Fault("stall", times=None), TransferError),
    ],
    ids=lambda value: f"{value.kind}-{value.status}" if isinstance(value, Fault) else "",
)
def test_what_does_not_pass_ends_in_an_error(
    server: HubServer, downloader: Downloader, fault: Fault, error: type[Exception]
) -> None:
    """A fault that stays ends after a bounded number of requests, with nothing under the name."""
    downloader.policy = replace(POLICY, silence=0.2)
    server.fail(fault)
    with pytest.raises(error):
        downloader.run()
    assert downloader.contents() == {}
    assert len(server.asked) < 100
    server.heal()
    downloader.policy = POLICY
    downloader.run()
    assert downloader.contents() == hashes(FILES)


def test_a_server_that_stops_honouring_ranges_loses_nothing(
    server: HubServer, downloader: Downloader
) -> None:
    """What came before is kept, and a server that honours ranges again is asked for the rest."""
    downloader.stop_at(200_000)
    server.fail(Fault("whole", times=None))
    with pytest.raises(RangesIgnoredError):
        downloader.run()
    server.heal()
    assert downloader.run().fetched < 500_000
    assert downloader.contents() == hashes(FILES)


def test_expired_addresses_are_renewed_once_for_all(
    server: HubServer, downloader: Downloader
) -> None:
    """When all parts find their address expired, the hub is asked for one new address."""
    server.hold(200_000)
    asked_before = 0
    request = DownloadRequest(REPO, downloader.folder, inspect=False, policy=POLICY)
    hub = HuggingFaceHub(endpoint=server.root, cache=downloader.cache)
    for event in download(request, hub=hub):
        if not asked_before and isinstance(event, Progress) and event.done >= 100_000:
            asked_before = sum(asked.origin == "hub" for asked in server.asked)
            server.expire()
            server.release()
    assert asked_before
    assert sum(asked.origin == "hub" for asked in server.asked) == asked_before + 1
    assert downloader.contents() == hashes(FILES)


def test_a_refusal_that_is_no_expiry_is_not_asked_for_ever(
    server: HubServer, downloader: Downloader
) -> None:
    """A new address is asked for twice; if it is refused as well, that is the error."""
    server.fail(Fault("status", times=None, status=403))
    with pytest.raises(TransferError, match="403"):
        downloader.run()
    hub_requests = [asked for asked in server.asked if asked.origin == "hub"]
    assert len(hub_requests) == 1 + 1 + 2


def test_a_rate_limit_holds_all_parts_back(server: HubServer, downloader: Downloader) -> None:
    """After one 429 nobody asks until the time is over, and a countdown is shown."""
    server.fail(Fault("status", times=4, status=429, headers={"Retry-After": "1"}))
    downloader.run()
    assert downloader.contents() == hashes(FILES)
    assert len(server.data_requests()) <= 4 + 10
    assert [e for e in downloader.events if isinstance(e, Progress) and "asks to wait" in e.label]
    assert [e for e in downloader.events if isinstance(e, Note) and "asks to wait" in e.text]


def test_a_wait_of_hours_is_not_sat_out(server: HubServer, downloader: Downloader) -> None:
    """It ends with what the server said and what is kept."""
    server.fail(Fault("status", times=None, status=429, headers={"Retry-After": "86400"}))
    with pytest.raises(TransferError, match=r"429.* asked again in 24 h 00 min") as caught:
        downloader.run()
    assert "are kept" in caught.value.__notes__[0]


def test_the_hubs_own_rate_limit_is_waited_for(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 429 of the hub itself is waited out as long as its header says."""
    waits: list[float] = []
    monkeypatch.setattr("ggufcluster.adapters.hub.time.sleep", waits.append)
    limit = {"RateLimit": '"api";r=0;t=7'}
    server.fail(Fault("status", origin="hub", status=429, headers=limit))
    downloader.run()
    assert waits == [7.0]


def test_a_slow_part_connects_anew(server: HubServer, downloader: Downloader) -> None:
    """A part that trickles while others are quick is given to another connection."""
    downloader.policy = replace(POLICY, rate_window=1.0)
    server.bucket.rate = 3e5
    server.fail(Fault("trickle", times=1, after=100))
    downloader.run()  # at the trickle's pace, the better part of an hour
    assert downloader.contents() == hashes(FILES)
    assert len(server.data_requests()) == 10 + 1


def test_wrong_bytes_are_set_aside(server: HubServer, downloader: Downloader) -> None:
    """A file with a wrong hash is fetched once more, then kept for a look under another name."""
    server.fail(Fault("corrupt", times=None))
    with pytest.raises(ChecksumError) as caught:
        downloader.run()
    assert "fetched once more" in downloader.warnings()
    assert caught.value.expected == hashes(FILES)["m-Q8_0.gguf"]
    wrong = downloader.folder / ".ggufcluster" / "m-Q8_0.gguf.wrong"
    assert str(wrong) == caught.value.kept
    assert wrong.stat().st_size == 600_000


def test_a_changed_file_is_said_and_its_parts_dropped(
    server: HubServer, downloader: Downloader
) -> None:
    """When the server suddenly sends another size, what came of that file is not mixed with it."""
    server.fail(Fault("resized", times=1))
    downloader.run()
    assert "its parts are dropped" in downloader.warnings()


def test_stopping_is_quick(server: HubServer, downloader: Downloader) -> None:
    """With every part silent for good, stopping does not wait for any of them."""
    downloader.policy = replace(POLICY, silence=1e6)
    server.fail(Fault("stall", times=None, after=30_000))
    stopping = threading.Thread(target=downloader.stop_at, args=(60_000,), daemon=True)
    stopping.start()
    wait_for(lambda: not stopping.is_alive(), what="the end of the download")
    assert downloader.contents() == {}
