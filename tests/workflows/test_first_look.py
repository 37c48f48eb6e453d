"""Models that are judged by their headers before they are downloaded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf_write import Tensor
from ggufcluster.errors import (
    AccessDeniedError,
    DiskFullError,
    MixedShardsError,
    ModelFileError,
    NotGgufError,
    OfflineError,
    RangesIgnoredError,
    TruncatedModelError,
    UnsupportedTensorError,
)
from ggufcluster.testing import Fault, HubServer
from ggufcluster.workflows.events import Progress
from tests.core.test_shards import NAMES, split
from tests.workflows.downloads import REPO, Downloader, content, hashes
from tests.workflows.test_model_files import asked_bytes
from tests.workflows.tiny_model import tiny, tiny_m3

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# What is behind the tensors of a file does not matter to anybody; it makes a set long.
LONG = 2 << 20
FIRST_REQUEST = 256 << 10


@pytest.fixture
def server() -> Iterator[HubServer]:
    """A hub."""
    with HubServer() as running:
        yield running


@pytest.fixture
def downloader(server: HubServer, tmp_path: Path) -> Downloader:
    """A downloader that looks first."""
    return Downloader(server, tmp_path / "models", tmp_path / "cache", inspect=True)


def whole_set() -> dict[str, bytes]:
    """Make a set of three shards that the engine can run."""
    parts = split(tiny_m3())
    return {
        name: part.to_bytes() + bytes(LONG + number)
        for number, (name, part) in enumerate(zip(NAMES, parts, strict=True))
    }


def with_float64() -> dict[str, bytes]:
    """Make a set whose last shard has a tensor that the engine cannot compute with."""
    model = tiny()
    odd = Tensor(model.tensors[2].name, (64, 2), TensorType.F64, bytes(2 * 8 * 64))
    tensors = [*model.tensors[:2], odd, *model.tensors[3:]]
    parts = split(replace(model, tensors=tensors))
    return {name: part.to_bytes() + bytes(LONG) for name, part in zip(NAMES, parts, strict=True)}


def with_a_part_of_another() -> dict[str, bytes]:
    """Make a set whose last shard is of another conversion."""
    return whole_set() | {NAMES[2]: split(tiny())[2].to_bytes() + bytes(LONG)}


def cut_short() -> dict[str, bytes]:
    """Make a file that promises more tensors than it holds."""
    return {"m-Q8_0.gguf": tiny().to_bytes()[:-600]}


def without_metadata() -> dict[str, bytes]:
    """Make a GGUF file that says nothing of a model."""
    return {"m-Q8_0.gguf": replace(tiny(), metadata={}).to_bytes()}


def header_requests(server: HubServer) -> int:
    """Count the requests that were made before any part of a shard was asked for."""
    first = f"bytes=0-{FIRST_REQUEST - 1}"
    return sum(asked.headers.get("range") == first for asked in server.data_requests())


def test_a_good_set_costs_one_more_request_a_shard(
    server: HubServer, downloader: Downloader
) -> None:
    """Each header takes one request, and the address found for it serves the download, too."""
    files = whole_set()
    server.publish(REPO, files)

    done = downloader.run()

    assert downloader.contents() == hashes(files)
    assert done.fetched == sum(map(len, files.values()))
    assert header_requests(server) == 3
    assert [a.headers["range"] for a in server.data_requests()[:3]] == [
        f"bytes=0-{FIRST_REQUEST - 1}"
    ] * 3
    assert sum(asked.origin == "hub" for asked in server.asked) == 1 + 3


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (with_float64, UnsupportedTensorError),
        (with_a_part_of_another, MixedShardsError),
        (cut_short, TruncatedModelError),
        (lambda: {"m-Q8_0.gguf": content(3 * LONG)}, NotGgufError),
        (lambda: {"m-Q8_0.gguf": b"<html>"}, NotGgufError),
        (without_metadata, ModelFileError),
    ],
    ids=["type", "mixed", "short", "noise", "page", "nothing"],
)
def test_what_inspect_refuses_is_not_fetched(
    server: HubServer, downloader: Downloader, make: object, error: type[ModelFileError]
) -> None:
    """Only headers come, nothing is left on the disk, and it is said how to have it anyway."""
    assert callable(make)
    files: Mapping[str, bytes] = make()
    server.publish(REPO, files)

    with pytest.raises(error) as caught:
        downloader.run()

    assert any("--no-inspect" in note for note in caught.value.__notes__)
    assert asked_bytes(server) <= len(files) * FIRST_REQUEST
    assert not [path for path in downloader.folder.rglob("*.partial*") if path.is_file()]
    assert downloader.contents() == {}
    downloader.inspect = False
    downloader.run()
    assert downloader.contents() == hashes(dict(files))


def test_what_is_no_model_is_fetched_as_it_is(server: HubServer, downloader: Downloader) -> None:
    """Files that do not hold a model's weights by their name are nobody's to judge."""
    files = {"mmproj-F16.gguf": content(1000), "imatrix.gguf": b"x", "README.md": b"# m"}
    server.publish(REPO, files)
    downloader.run(include="*")
    assert downloader.contents() == hashes(files)
    assert header_requests(server) == 0


def test_every_model_of_a_choice_is_judged(server: HubServer, downloader: Downloader) -> None:
    """One bad model among several is found before the good ones are fetched."""
    good = tiny().to_bytes() + bytes(LONG)
    server.publish(REPO, {"a-Q8_0.gguf": good, "b/b-Q4_0.gguf": cut_short()["m-Q8_0.gguf"]})
    with pytest.raises(TruncatedModelError, match=r"b/b-Q4_0\.gguf"):
        downloader.run(include="*")
    assert downloader.contents() == {}


def test_shards_that_are_here_are_read_here(server: HubServer, downloader: Downloader) -> None:
    """Only the header of what is missing is asked for, and the set is judged as a whole."""
    files = whole_set()
    server.publish(REPO, files)
    downloader.run()
    (downloader.folder / NAMES[1]).unlink()
    server.asked.clear()

    assert downloader.run().fetched == len(files[NAMES[1]])

    assert {asked.path.partition("?")[0][-len(NAMES[1]) :] for asked in server.data_requests()} == {
        NAMES[1]
    }
    assert header_requests(server) == 1
    assert downloader.contents() == hashes(files)


def test_a_second_run_looks_at_nothing(server: HubServer, downloader: Downloader) -> None:
    """With all files here and verified there is nothing to look at."""
    server.publish(REPO, whole_set())
    downloader.run()
    server.asked.clear()
    downloader.events = []
    downloader.run()
    assert server.data_requests() == []
    assert not [event for event in downloader.events if isinstance(event, Progress)]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("short", times=2, after=1000),
        Fault("reset", times=2, after=1000),
        Fault("stall", times=1, after=1000),
        Fault("status", times=2, status=503),
        Fault("chunked", times=1),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_a_look_is_repeated_if_it_fails(
    server: HubServer, downloader: Downloader, fault: Fault
) -> None:
    """What passes is mended without a word, and the model is judged all the same."""
    server.publish(REPO, with_float64())
    server.fail(fault)
    with pytest.raises(UnsupportedTensorError):
        downloader.run()
    assert downloader.warnings() == ""
    assert downloader.contents() == {}


@pytest.mark.parametrize(
    "fault",
    [
        Fault("whole"),
        Fault("resized"),
        Fault("shifted"),
        Fault("packed"),
        Fault("status", status=403),
        Fault("status", status=416),
        Fault("status", status=429, headers={"Retry-After": "3"}),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_a_look_that_fails_is_left_to_the_download(
    server: HubServer, downloader: Downloader, fault: Fault
) -> None:
    """A server that does not give the headers once is warned of, and the model comes whole."""
    files = whole_set()
    server.publish(REPO, files)
    server.fail(fault)
    downloader.run()
    assert "headers could not be read ahead" in downloader.warnings()
    assert downloader.contents() == hashes(files)


def test_a_server_without_ranges_is_refused_as_ever(
    server: HubServer, downloader: Downloader
) -> None:
    """The error is that of the download, with nothing under the final names."""
    server.publish(REPO, whole_set())
    server.fail(Fault("whole", times=None))
    with pytest.raises(RangesIgnoredError):
        downloader.run()
    assert downloader.contents() == {}


def test_expired_addresses_of_a_look_are_renewed(server: HubServer, downloader: Downloader) -> None:
    """An address that expires between the look and the first part is asked for anew."""
    files = whole_set()
    server.publish(REPO, files)
    is_expired = False

    def expire() -> None:
        nonlocal is_expired
        if header_requests(server) == 3 and not is_expired:
            is_expired = True
            server.expire()

    downloader.on_event = expire
    downloader.run()
    assert is_expired
    assert downloader.contents() == hashes(files)


def test_a_gated_repository_is_told_once(server: HubServer, downloader: Downloader) -> None:
    """The refusal of the hub is the error, without a warning before it."""
    server.publish(REPO, whole_set())
    server.gated.add(REPO)
    with pytest.raises(AccessDeniedError):
        downloader.run()
    assert downloader.warnings() == ""


def test_a_disk_too_small_is_told_before_a_look(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs no request is checked first."""
    server.publish(REPO, whole_set())
    monkeypatch.setattr("ggufcluster.adapters.files.free_bytes", lambda _path: 100_000)
    with pytest.raises(DiskFullError):
        downloader.run()
    assert server.data_requests() == []


def test_offline_no_header_is_asked_for(
    server: HubServer, downloader: Downloader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, what is here is found and what is missing is named, without a request."""
    server.publish(REPO, whole_set())
    downloader.run()
    (downloader.folder / NAMES[1]).unlink()
    server.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineError, match=NAMES[1]):
        downloader.run()
    assert server.asked == []
