"""A model that a program names by repository and file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants

from ggufcluster.adapters.hub import HuggingFaceHub
from ggufcluster.errors import ConfigError, FileChoiceError
from ggufcluster.testing import HubServer
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.pretrained import bring_model
from tests.core.test_shards import NAMES, split
from tests.workflows.downloads import REPO
from tests.workflows.tiny_model import tiny, tiny_m3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHARDS = {name: part.to_bytes() for name, part in zip(NAMES, split(tiny_m3()), strict=True)}
OTHER = {"q/other-Q8_0.gguf": tiny().to_bytes(), "mmproj-F16.gguf": b"eyes", "config.json": b"{}"}


@pytest.fixture
def server() -> Iterator[HubServer]:
    """A hub with a set of shards, another model and what is none."""
    with HubServer() as running:
        running.publish(REPO, SHARDS | OTHER)
        yield running


def bring(
    server: HubServer, folder: Path, *names: str | None, repository: str = REPO
) -> tuple[str, set[str]]:
    """Bring a model; return it and all that is there, as paths below the folder."""
    hub = HuggingFaceHub(endpoint=server.root, token=None, cache=folder / "cache")
    place = folder / "models"
    first = drain(bring_model(repository, place, names=names, hub=hub))
    files = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
    return str(first.relative_to(place)), {path for path in files if path[0] != "."}


def test_one_shard_stands_for_its_set(server: HubServer, tmp_path: Path) -> None:
    """Other shards need not be named, and may be; further files come to the same folder."""
    first, files = bring(server, tmp_path, NAMES[0], NAMES[1], "mmproj*")
    assert first == NAMES[0]
    assert files == {*SHARDS, "mmproj-F16.gguf"}


def test_a_pattern_or_nothing_finds_the_only_model(server: HubServer, tmp_path: Path) -> None:
    """A pattern may hold the folder, and without a name there must be one model only."""
    found = bring(server, tmp_path, "q/*.gguf")
    assert found == ("q/other-Q8_0.gguf", {"q/other-Q8_0.gguf"})
    server.publish("me/single", {"a.gguf": tiny().to_bytes()})
    found = bring(server, tmp_path / "2", None, repository="me/single")
    assert found == ("a.gguf", {"a.gguf"})


@pytest.mark.parametrize(
    ("name", "told"),
    [("*.gguf", "has 2 models that fit"), ("nothing*", "no file fits"), ("*.json", "is no model")],
)
def test_what_is_not_one_model_is_refused(
    server: HubServer, tmp_path: Path, name: str, told: str
) -> None:
    """Several models, none, and a file that is no model are each told."""
    with pytest.raises(FileChoiceError, match=told):
        bring(server, tmp_path, name)


def test_offline_several_models_are_refused_as_well(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of those that are here is taken for the one that was meant."""
    bring(server, tmp_path, NAMES[0], "q/*.gguf", "mmproj*")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileChoiceError, match="has 2 models that fit"):
        bring(server, tmp_path, "*.gguf")
    assert bring(server, tmp_path, "q/*.gguf")[0] == "q/other-Q8_0.gguf"


def test_a_name_that_is_no_repository(server: HubServer, tmp_path: Path) -> None:
    """It is refused before anybody is asked."""
    with pytest.raises(ConfigError, match="repo_id"):
        bring(server, tmp_path, None, repository="model")
    assert server.asked == []
