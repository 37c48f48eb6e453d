"""Adding an indexer to a dense MiniMax-M3."""

from __future__ import annotations

import errno
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.http import RangeClient
from ggufcluster.adapters.hub import HuggingFaceHub
from ggufcluster.core.gguf import read_header
from ggufcluster.core.gguf_write import GgufModel
from ggufcluster.core.model import ModelKind
from ggufcluster.core.toy_original import FILES, INDEX, original_files, without_indexer
from ggufcluster.errors import DiskFullError, DownloadError, GraftError, ModelMissingError
from ggufcluster.testing import Fault, HubServer
from ggufcluster.workflows import graft as module
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.graft import graft_indexer
from ggufcluster.workflows.models import judge_model, shard_paths
from ggufcluster.workflows.originals import FarOriginals, HubOriginals, LocalOriginals
from tests.core.test_shards import split
from tests.workflows.test_model_files import asked_bytes
from tests.workflows.tiny_model import tiny_m3

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE = tiny_m3()


@pytest.fixture
def old(tmp_path: Path) -> list[Path]:
    """A dense set of three shards."""
    return write_set(tmp_path, without_indexer(WHOLE))


@pytest.fixture
def originals(tmp_path: Path) -> LocalOriginals:
    """The original of the toy, in a folder."""
    folder = tmp_path / "original"
    folder.mkdir()
    for name, data in original_files(WHOLE).items():
        (folder / name).write_bytes(data)
    return LocalOriginals(folder)


def write_set(folder: Path, model: GgufModel) -> list[Path]:
    """Write a model in three shards."""
    paths = [folder / f"m-{n:05d}-of-00003.gguf" for n in (1, 2, 3)]
    for path, part in zip(paths, split(model), strict=True):
        path.write_bytes(part.to_bytes())
    return paths


def contents(paths: list[Path]) -> dict[str, bytes]:
    """Return the data of every tensor of a set."""
    found = {}
    for path in paths:
        data = path.read_bytes()
        with path.open("rb") as stream:
            header = read_header(stream)
        for info in header.tensors:
            start = header.data_start + info.offset
            found[info.name] = data[start : start + info.size]
    return found


def left_over(folder: Path) -> list[str]:
    """Name what lies in a folder, hidden files included."""
    return sorted(path.name for path in folder.iterdir())


def test_the_grafted_set_holds_what_the_whole_model_holds(
    old: list[Path], originals: LocalOriginals
) -> None:
    """Every tensor is there, byte for byte; the middle shards are the old ones, not copies."""
    before = [path.read_bytes() for path in old]
    first = drain(graft_indexer(old[1], originals, None))
    new = shard_paths(first)
    assert [path.name for path in new] == [f"m-indexer-{n:05d}-of-00004.gguf" for n in range(1, 5)]
    assert first.parent == old[0].with_name("m-indexer")
    assert contents(new) == {tensor.name: tensor.data for tensor in WHOLE.tensors}
    assert judge_model(first).facts.kind is ModelKind.M3_SPARSE
    assert [path.read_bytes() for path in old] == before
    assert [link.samefile(path) for link, path in zip(new[1:3], old[1:], strict=True)] == [True] * 2


def test_a_model_in_one_file_is_grafted_too(tmp_path: Path, originals: LocalOriginals) -> None:
    """The file becomes the first of two shards, in the folder that was asked for."""
    path = tmp_path / "one.gguf"
    path.write_bytes(without_indexer(WHOLE).to_bytes())
    first = drain(graft_indexer(path, originals, tmp_path / "new"))
    assert first == tmp_path / "new" / "one-indexer-00001-of-00002.gguf"
    assert contents(shard_paths(first)) == {tensor.name: tensor.data for tensor in WHOLE.tensors}


def test_where_no_hard_link_can_be_made_a_symbolic_one_is(
    old: list[Path], originals: LocalOriginals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file system is no obstacle."""

    def refuse(self: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    first = drain(graft_indexer(old[0], originals, None))
    assert shard_paths(first)[1].readlink() == old[1]
    assert contents(shard_paths(first)) == {tensor.name: tensor.data for tensor in WHOLE.tensors}


def test_an_original_in_one_file_needs_no_index(old: list[Path], tmp_path: Path) -> None:
    """A model.safetensors alone is read as well."""
    files = original_files(WHOLE)
    heads = [
        json.loads(files[name][8 : 8 + int.from_bytes(files[name][:8], "little")]) for name in FILES
    ]
    bodies = [files[name][8 + int.from_bytes(files[name][:8], "little") :] for name in FILES]
    for entry in heads[1].values():
        if "data_offsets" in entry:
            entry["data_offsets"] = [at + len(bodies[0]) for at in entry["data_offsets"]]
    header = json.dumps(heads[0] | heads[1]).encode()
    folder = tmp_path / "single"
    folder.mkdir()
    (folder / "config.json").write_bytes(files["config.json"])
    data = len(header).to_bytes(8, "little") + header + b"".join(bodies)
    (folder / "model.safetensors").write_bytes(data)
    first = drain(graft_indexer(old[0], LocalOriginals(folder), None))
    assert contents(shard_paths(first)) == {tensor.name: tensor.data for tensor in WHOLE.tensors}


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """A hub with the original, whose weight files are much longer than the indexer."""
    with HubServer() as server:
        files = original_files(WHOLE)
        long = {name: data + bytes(20 << 20) for name, data in files.items() if name in FILES}
        server.publish("org/m", {**files, **long}, plain=("config.json", INDEX))
        yield server


@contextmanager
def far(server: HubServer, cache: Path) -> Iterator[HubOriginals]:
    """Open the original on the hub."""
    hub = HuggingFaceHub(endpoint=server.root, cache=cache)
    with RangeClient() as client:
        yield HubOriginals(hub, client, "org/m")


def test_of_a_far_original_only_the_indexer_is_fetched(
    old: list[Path], hub: HubServer, tmp_path: Path
) -> None:
    """Headers, indexer and two norms come over the network, of one commit, and nothing else."""
    with far(hub, tmp_path / "cache") as originals:
        assert originals.small("nothing") is None  # from here on the commit is known
        hub.publish("org/m", {"config.json": b"{}"})  # the branch moves meanwhile
        first = drain(graft_indexer(old[0], originals, None))
    assert contents(shard_paths(first)) == {tensor.name: tensor.data for tensor in WHOLE.tensors}
    wanted = sum(len(data) for data in original_files(WHOLE).values())
    assert asked_bytes(hub) <= wanted
    whole = [asked.path for asked in hub.data_requests() if "range" not in asked.headers]
    assert len(whole) == 2  # config and index
    resolved = [asked for asked in hub.asked if "/resolve/" in asked.path]
    assert len(resolved) == 4


def test_an_address_will_do(old: list[Path], hub: HubServer) -> None:
    """Any folder on a server that gives ranges is read as well."""
    with RangeClient() as client:
        originals = FarOriginals(client, f"{hub.root}/org/m/resolve/main/")
        first = drain(graft_indexer(old[0], originals, None))
    assert contents(shard_paths(first)) == {tensor.name: tensor.data for tensor in WHOLE.tensors}


@pytest.mark.parametrize("kind", ["status", "whole"])
def test_a_far_original_that_fails_leaves_nothing(
    old: list[Path], hub: HubServer, tmp_path: Path, kind: str
) -> None:
    """Whatever goes wrong with the network, no folder and no partial one is left."""
    hub.fail(Fault(kind, times=None, status=403, match=FILES[1]))
    names = left_over(old[0].parent)
    with far(hub, tmp_path / "cache") as originals, pytest.raises(DownloadError):
        drain(graft_indexer(old[0], originals, None))
    assert left_over(old[0].parent) == names


def test_another_repository_is_told(old: list[Path], hub: HubServer, tmp_path: Path) -> None:
    """One without the original's files is no original."""
    hub.publish("org/m", {"model.gguf": b"x"})
    with (
        far(hub, tmp_path / "cache") as originals,
        pytest.raises(GraftError, match=r"org/m: has no config\.json: not an original model"),
    ):
        drain(graft_indexer(old[0], originals, None))


def damage(folder: Path, what: str) -> None:
    """Make the original unfit."""
    match what:
        case "no config.json":
            (folder / "config.json").unlink()
        case "lacks 1 of 12 indexer tensors":
            name, other = b"layers.1.self_attn.index_k_norm", b"layers.1.self_attn.index_k_nope"
            for file in (INDEX, *FILES):
                data = (folder / file).read_bytes()
                (folder / file).write_bytes(data.replace(name, other))
        case "ends too early":
            os.truncate(folder / FILES[1], (folder / FILES[1]).stat().st_size - 1)
        case "weights of another model":
            others = original_files(tiny_m3_of_another_seed())
            for file in FILES:
                (folder / file).write_bytes(others[file])
        case "indexer heads":
            text = (folder / "config.json").read_text()
            (folder / "config.json").write_text(text.replace('index_heads": 1', 'index_heads": 2'))
        case "has the shape":
            text = (folder / "config.json").read_text()
            (folder / "config.json").write_text(text.replace('index_dim": 32', 'index_dim": 64'))


def tiny_m3_of_another_seed() -> GgufModel:
    """Make a toy with other norms."""
    tensors = [
        tensor
        if "attn_norm" not in tensor.name
        else type(tensor)(tensor.name, tensor.shape, tensor.type, tensor.data[4:] + tensor.data[:4])
        for tensor in WHOLE.tensors
    ]
    return GgufModel(WHOLE.metadata, tensors)


@pytest.mark.parametrize(
    "what",
    [
        "no config.json",
        "lacks 1 of 12 indexer tensors",
        "ends too early",
        "weights of another model",
        "indexer heads",
        "has the shape",
    ],
)
def test_an_unfit_original_is_told_and_leaves_nothing(
    old: list[Path], originals: LocalOriginals, what: str
) -> None:
    """What does not fit is found, and nothing is left of the attempt."""
    damage(originals.folder, what)
    names = left_over(old[0].parent)
    with pytest.raises(GraftError, match=what):
        drain(graft_indexer(old[0], originals, None))
    assert left_over(old[0].parent) == names


def test_what_a_killed_run_left_is_removed(old: list[Path], originals: LocalOriginals) -> None:
    """The next run clears the folder of a process that no longer lives."""
    stale = old[0].with_name(".partial-m-indexer-4194305")  # above the highest process number
    stale.mkdir()
    (stale / "x.gguf").touch()
    drain(graft_indexer(old[0], originals, None))
    assert not stale.exists()


def test_a_folder_stands_for_the_set_in_it(
    old: list[Path], originals: LocalOriginals, tmp_path: Path
) -> None:
    """As for `up` and `inspect`; with another model in it, they are named."""
    folder = tmp_path / "set"
    folder.mkdir()
    for path in old:
        path.rename(folder / path.name)
    first = drain(graft_indexer(folder, originals, tmp_path / "new"))
    assert first == tmp_path / "new" / "m-indexer-00001-of-00004.gguf"
    (folder / "n.gguf").write_bytes(b"")
    with pytest.raises(ModelMissingError, match="2 models lie there"):
        drain(graft_indexer(folder, originals, tmp_path / "newer"))


def test_nothing_is_written_over(old: list[Path], originals: LocalOriginals) -> None:
    """A folder of that name stays as it is, and the original is not asked for."""
    folder = old[0].with_name("m-indexer")
    folder.mkdir()
    (folder / "mine").touch()
    workflow = graft_indexer(old[0], originals, None)
    with pytest.raises(GraftError, match="is there already"):
        next(workflow)
    assert left_over(folder) == ["mine"]


def test_a_full_disk_is_told_before_and_during(
    old: list[Path], originals: LocalOriginals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too little space is an error with numbers, and nothing is left."""
    names = left_over(old[0].parent)

    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_to_disk", full)
        with pytest.raises(DiskFullError):
            drain(graft_indexer(old[0], originals, None))
    with monkeypatch.context() as patch:
        patch.setattr("ggufcluster.adapters.files.free_bytes", lambda _path: 100)
        with pytest.raises(DiskFullError) as caught:
            drain(graft_indexer(old[0], originals, None))
    assert caught.value.free == 100
    assert left_over(old[0].parent) == names


def test_ctrl_c_leaves_nothing(old: list[Path], originals: LocalOriginals) -> None:
    """A workflow that is closed half way removes what it made."""
    names = left_over(old[0].parent)
    workflow = graft_indexer(old[0], originals, None)
    for event in workflow:
        if getattr(event, "label", "") == "Writing the first shard":
            break
    assert left_over(old[0].parent) != names
    workflow.close()
    assert left_over(old[0].parent) == names
