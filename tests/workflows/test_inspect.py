"""Finding out what a model is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.http import RangeClient
from ggufcluster.adapters.hub import HuggingFaceHub
from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf_write import GgufModel, Tensor
from ggufcluster.core.model import ModelKind
from ggufcluster.errors import FileChoiceError, MixedShardsError, ModelFileError, ModelMissingError
from ggufcluster.testing import HubServer
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.inspect import (
    far_files,
    hub_files,
    inspect,
    is_repository,
    local_files,
)
from ggufcluster.workflows.models import read_model
from tests.core.test_shards import NAMES, split
from tests.workflows.tiny_model import tiny, tiny_m3, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ggufcluster.core.inspection import Inspection


def write_set(folder: Path, model: GgufModel) -> list[Path]:
    """Write a model in three shards."""
    folder.mkdir(exist_ok=True)
    paths = [folder / name for name in NAMES]
    for path, part in zip(paths, split(model), strict=True):
        path.write_bytes(part.to_bytes())
    return paths


def test_a_set_is_inspected_from_any_of_its_shards(tmp_path: Path) -> None:
    """All files count, whichever is named."""
    paths = write_set(tmp_path, tiny_m3())
    for path in paths:
        found = drain(inspect(local_files(str(path), tmp_path)))
        assert found.facts.kind is ModelKind.M3_SPARSE
        assert [file.path for file in found.files] == [str(path) for path in paths]
        assert found.tensors == len(tiny_m3().tensors)


def test_a_folder_stands_for_the_model_in_it(tmp_path: Path) -> None:
    """One model in a folder is meant; none and two are told."""
    paths = write_set(tmp_path / "m", tiny())
    assert [file.place for file in local_files(str(tmp_path / "m"), tmp_path)] == paths
    write_model(tmp_path / "other.gguf")
    with pytest.raises(ModelMissingError, match="2 models lie there: m/m-00001-of-"):
        local_files(str(tmp_path), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelMissingError, match="no GGUF file lies there"):
        local_files(str(tmp_path / "empty"), tmp_path)


def test_the_only_downloaded_model_needs_no_name(tmp_path: Path) -> None:
    """Without a name the same model is meant that `up` would run."""
    path = write_model(tmp_path / "m.gguf")
    assert [file.place for file in local_files(None, tmp_path)] == [path]


def test_a_set_with_a_hole_is_told(tmp_path: Path) -> None:
    """A shard that is not there is named before anything is read."""
    paths = write_set(tmp_path, tiny())
    paths[1].unlink()
    with pytest.raises(ModelMissingError, match=f"1 of 3 shards are missing: {NAMES[1]}"):
        local_files(str(paths[0]), tmp_path)


def test_an_address_stands_for_its_whole_set(tmp_path: Path) -> None:
    """Shards beside the one that is named are found, and their headers alone are fetched."""
    paths = write_set(tmp_path, tiny_m3())
    with HubServer() as hub, RangeClient() as client:
        hub.publish("me/m", {f"UD Q4/{path.name}": path for path in paths})
        files = far_files(client, hub.address("me/m", f"UD Q4/{NAMES[1]}"))
        found = drain(inspect(files))
    near = drain(inspect(local_files(str(paths[0]), tmp_path)))
    assert found.facts == near.facts
    assert [file.path.rpartition("/")[2] for file in found.files] == list(NAMES)
    assert not any("Signature" in file.path for file in found.files)


def test_names_of_people_hold_no_password() -> None:
    """Neither query nor password of an address is shown."""
    with RangeClient() as client:
        (file,) = far_files(client, "https://me:secret@example.org/a/b%20c.gguf?token=x")
    assert file.path == "example.org/a/b%20c.gguf"
    assert file.url == "https://me:secret@example.org/a/b%20c.gguf?token=x"


@pytest.fixture
def server() -> Iterator[HubServer]:
    """A hub on the loopback interface."""
    with HubServer() as running:
        yield running


def in_repository(
    server: HubServer, cache: Path, *, quant: str | None = None, include: str | None = None
) -> Inspection:
    """Inspect a model of org/m."""
    hub = HuggingFaceHub(endpoint=server.root, cache=cache)
    with RangeClient() as client:
        files = hub_files(hub, client, "org/m", quant=quant, include=include, revision="main")
        return drain(inspect(files))


def test_a_quantisation_of_a_repository_is_inspected(server: HubServer, tmp_path: Path) -> None:
    """Of the shards of the one that is asked for the headers are fetched, of others nothing."""
    paths = write_set(tmp_path / "q4", tiny_m3())
    other = write_model(tmp_path / "q8.gguf")
    small = {f"UD-Q4/m-UD-Q4_K-{path.name[2:]}": path.read_bytes() for path in paths}
    long = {name: data + bytes(8 << 20) for name, data in small.items()}
    server.publish("org/m", {**long, "m-Q8_0.gguf": other, "mmproj-F16.gguf": b"x", "README": b"x"})
    found = in_repository(server, tmp_path / "cache", quant="ud-q4_k")
    assert [file.path for file in found.files] == [f"org/m/{name}" for name in small]
    assert found.facts.kind is ModelKind.M3_SPARSE
    assert server.served == 3 * (256 << 10)
    assert in_repository(server, tmp_path / "cache", include="*Q8*").facts.name == "Tiny"


def test_what_is_in_the_cache_of_the_hub_is_read_there(server: HubServer, tmp_path: Path) -> None:
    """A file that is here already is not fetched; its published name is shown."""
    data = write_model(tmp_path / "m.gguf").read_bytes()
    commit = server.publish("org/m", {"m.gguf": data})
    snapshot = tmp_path / "cache" / "models--org--m" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "m.gguf").write_bytes(data)
    found = in_repository(server, tmp_path / "cache")
    assert [file.path for file in found.files] == ["org/m/m.gguf"]
    assert server.served == 0


def test_the_choice_must_be_clear(server: HubServer, tmp_path: Path) -> None:
    """Several models, none, and one that is not there are told with what there is."""
    data = write_model(tmp_path / "m.gguf").read_bytes()
    server.publish("org/m", {"m-Q4_0.gguf": data, "m-Q8_0.gguf": data, "mmproj-F16.gguf": data})
    cache = tmp_path / "cache"
    with pytest.raises(FileChoiceError, match="holds 2 models"):
        in_repository(server, cache)
    with pytest.raises(FileChoiceError, match="Q4_0, Q8_0"):
        in_repository(server, cache, quant="Q9")
    with pytest.raises(FileChoiceError, match=r"2 models were chosen.*m-Q4_0\.gguf"):
        in_repository(server, cache, include="m-*")
    with pytest.raises(FileChoiceError, match="no model was chosen"):
        in_repository(server, cache, include="mmproj*")


def test_half_an_address_is_told() -> None:
    """What cannot be taken apart is an error of ours."""
    with RangeClient() as client, pytest.raises(ModelMissingError, match="is no address"):
        far_files(client, "http://[::1/m.gguf")


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("org/Some-Model.GGUF_1", True),
        ("org/model.gguf", False),
        ("models/here", False),
        ("./org/model", False),
        ("/org/model", False),
        ("org", False),
        ("a/b/c", False),
        ("../model", False),
    ],
)
def test_repositories_are_told_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, *, answer: bool
) -> None:
    """Two names with a slash are a repository, unless they are a path of this machine."""
    (tmp_path / "models" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert is_repository(target) is answer


@pytest.mark.parametrize("damage", ["type", "indexer", "mixed"])
def test_up_and_inspect_refuse_in_the_same_words(tmp_path: Path, damage: str) -> None:
    """What `up` reads of a model goes through the same judgement."""
    model = tiny_m3()
    tensors = list(model.tensors)
    if damage == "type":
        odd = Tensor(tensors[0].name, (32, 512), TensorType.F64, bytes(8 * 32 * 512))
        tensors[0] = odd
    elif damage == "indexer":
        tensors.pop()
    paths = write_set(tmp_path, replace(model, tensors=tensors))
    if damage == "mixed":
        paths[2].write_bytes(split(tiny())[2].to_bytes())
    with pytest.raises(ModelFileError) as inspected:
        drain(inspect(local_files(str(paths[0]), tmp_path)))
    with pytest.raises(type(inspected.value), match=re.escape(str(inspected.value))):
        read_model(paths[0])
    assert isinstance(inspected.value, MixedShardsError) is (damage == "mixed")
