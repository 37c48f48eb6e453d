"""Reading headers here and far away."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.http import RangeClient
from ggufcluster.core.gguf import ValueType, read_header
from ggufcluster.core.gguf_write import GgufModel, array
from ggufcluster.errors import (
    ModelMissingError,
    NotGgufError,
    RangesIgnoredError,
    TransferError,
    TruncatedModelError,
)
from ggufcluster.testing import Fault, HubServer
from ggufcluster.workflows.events import Finished, Progress, drain
from ggufcluster.workflows.model_files import FarFile, LocalFile, read_shards, require_files
from tests.workflows.tiny_model import tiny, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPO = "me/model"
WEIGHTS = 64 << 20


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """A server that gives ranges and counts what it sends."""
    with HubServer() as server:
        yield server


@pytest.fixture
def client() -> Iterator[RangeClient]:
    """A client as commands use it."""
    with RangeClient() as opened:
        yield opened


def asked_bytes(hub: HubServer) -> int:
    """Count the bytes that the ranges asked for together hold; the server counts too late."""
    texts = [asked.headers.get("range", "") for asked in hub.data_requests()]
    ranges = [text.removeprefix("bytes=").split("-") for text in texts if text]
    return sum(int(end) - int(start) + 1 for start, end in ranges)


def big_file(folder: Path, *, words: int = 0) -> Path:
    """Write a file with 64 MiB of weights, none of them on the disk, after `words` tokens."""
    keys = {"tokenizer.ggml.tokens": array(ValueType.STRING, ["token"] * words)} if words else {}
    model = GgufModel(dict(tiny().metadata) | keys, [])
    head = bytearray(model.to_bytes())
    name = b"token_embd.weight"
    head[8:16] = (1).to_bytes(8, "little")
    info = len(name).to_bytes(8, "little") + name + (1).to_bytes(4, "little")
    info += (WEIGHTS // 4).to_bytes(8, "little") + bytes(4) + bytes(8)
    path = folder / "big.gguf"
    with path.open("wb") as file:
        # The padding of a file without tensors is no part of one that has some.
        end = read_header(io.BytesIO(bytes(model.to_bytes()))).extent
        file.write(head[:end] + info)
        file.truncate(-(-file.tell() // 32) * 32 + WEIGHTS)
    return path


def test_files_of_this_machine_are_read_in_order(tmp_path: Path) -> None:
    """Each becomes a shard with its size, and progress is told."""
    paths = [write_model(tmp_path / name) for name in ("a.gguf", "b.gguf")]
    events = []
    reading = read_shards([LocalFile(path) for path in paths])
    try:
        while True:
            events.append(next(reading))
    except StopIteration as end:
        shards = end.value
    assert [shard.path for shard in shards] == [str(path) for path in paths]
    assert [shard.size for shard in shards] == [path.stat().st_size for path in paths]
    assert [event.done for event in events if isinstance(event, Progress)] == [0, 1]
    assert events[-1] == Finished("Reading headers", "2 files")


def test_a_far_file_is_read_like_a_near_one(
    hub: HubServer, client: RangeClient, tmp_path: Path
) -> None:
    """The header is the same, and of the weights next to nothing is fetched."""
    path = big_file(tmp_path)
    hub.publish(REPO, {"big.gguf": path})
    file = FarFile(client, hub.address(REPO, "big.gguf"), "hub/big.gguf")
    (far,) = drain(read_shards([file]))
    (near,) = drain(read_shards([LocalFile(path)]))
    assert far.header == near.header
    assert far.size == near.size == path.stat().st_size
    assert asked_bytes(hub) == 256 << 10


def test_a_long_vocabulary_is_fetched_in_growing_parts(
    hub: HubServer, client: RangeClient, tmp_path: Path
) -> None:
    """A header of some megabytes takes few requests, and less than as much again on top."""
    path = big_file(tmp_path, words=300_000)
    with path.open("rb") as stream:
        header = read_header(stream)
    hub.publish(REPO, {"big.gguf": path})
    drain(read_shards([FarFile(client, hub.address(REPO, "big.gguf"), "x")]))
    assert header.data_start > 3 << 20
    assert asked_bytes(hub) < 2 * header.data_start + (256 << 10)
    assert len(hub.data_requests()) <= 6


@pytest.mark.parametrize("kind", ["short", "reset"])
def test_a_connection_that_breaks_is_taken_up(
    hub: HubServer, client: RangeClient, tmp_path: Path, kind: str
) -> None:
    """The header is read whole although an answer was cut."""
    path = big_file(tmp_path, words=100_000)
    hub.publish(REPO, {"big.gguf": path})
    hub.fail(Fault(kind, after=1000))
    (far,) = drain(read_shards([FarFile(client, hub.address(REPO, "big.gguf"), "x")]))
    (near,) = drain(read_shards([LocalFile(path)]))
    assert far.header == near.header


def test_a_server_without_ranges_is_refused(
    hub: HubServer, client: RangeClient, tmp_path: Path
) -> None:
    """Two hundred gigabytes are not read for a header."""
    hub.publish(REPO, {"big.gguf": big_file(tmp_path)})
    hub.fail(Fault("whole", times=None))
    with pytest.raises(RangesIgnoredError):
        drain(read_shards([FarFile(client, hub.address(REPO, "big.gguf"), "x")]))


def test_a_page_instead_of_a_model_is_told(hub: HubServer, client: RangeClient) -> None:
    """What is no GGUF is named as people know it, after the first bytes."""
    hub.publish(REPO, {"big.gguf": b"<!doctype html>" * 1_000_000})
    with pytest.raises(NotGgufError, match=r"^hub/big\.gguf: not a GGUF file"):
        drain(read_shards([FarFile(client, hub.address(REPO, "big.gguf"), "hub/big.gguf")]))
    assert asked_bytes(hub) == 256 << 10


def test_a_missing_far_file_is_told(hub: HubServer, client: RangeClient) -> None:
    """The server's answer is the reason."""
    hub.publish(REPO, {"other.gguf": b"x"})
    with pytest.raises(TransferError, match="404"):
        drain(read_shards([FarFile(client, hub.address(REPO, "big.gguf"), "x")]))


def test_a_far_file_that_ends_too_early_is_told(
    hub: HubServer, client: RangeClient, tmp_path: Path
) -> None:
    """The size that the server tells is compared with what the tensors need."""
    path = big_file(tmp_path)
    os.truncate(path, path.stat().st_size - 100)
    hub.publish(REPO, {"big.gguf": path})
    with pytest.raises(TruncatedModelError) as caught:
        drain(read_shards([FarFile(client, hub.address(REPO, "big.gguf"), "x")]))
    assert caught.value.need - caught.value.have == 100


def test_missing_files_are_counted(tmp_path: Path) -> None:
    """The first three that are not there are named."""
    present = write_model(tmp_path / "1")
    with pytest.raises(ModelMissingError, match=r"4 of 5 shards are missing: 2, 3, 4$"):
        require_files([present, *(tmp_path / name for name in "2345")])
