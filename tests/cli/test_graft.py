"""`graft-indexer` on the command line."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ggufcluster.adapters.hub import HuggingFaceHub
from ggufcluster.cli.app import app
from ggufcluster.core.secret import Secret
from ggufcluster.core.toy_original import INDEX, original_files, without_indexer
from ggufcluster.errors import GraftError, ModelMissingError
from ggufcluster.testing import HubServer
from tests.workflows.tiny_model import tiny_m3

if TYPE_CHECKING:
    from pathlib import Path


def call(*words: str) -> str:
    """Run the command and return what it printed to stdout."""
    result = CliRunner().invoke(app, ["graft-indexer", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def dense(folder: Path) -> Path:
    """Write a model without indexer."""
    path = folder / "m.gguf"
    path.write_bytes(without_indexer(tiny_m3()).to_bytes())
    return path


def test_an_original_in_a_folder(tmp_path: Path) -> None:
    """The path of the new model is what is printed, ready for `up`, whatever is in it."""
    folder = tmp_path / "my models"
    folder.mkdir()
    for name, data in original_files(tiny_m3()).items():
        (tmp_path / name).write_bytes(data)
    told = call(str(dense(folder)), "--from", str(tmp_path))
    first = f"{folder}/m-indexer/m-indexer-00001-of-00002.gguf"
    assert told.splitlines()[0] == first
    assert shlex.split(told.splitlines()[-1]) == ["ggufcluster", "up", "--model", first]
    assert (folder / "m-indexer" / "m-indexer-00002-of-00002.gguf").is_file()


def test_a_private_repository_of_another_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token goes to the hub only, not to where it sends us."""
    with HubServer(prefix="/mirror") as hub:
        hub.publish("org/m", original_files(tiny_m3()), plain=("config.json", INDEX))
        hub.private.add("org/m")
        mirror = HuggingFaceHub(endpoint=hub.root, token=Secret(hub.token), cache=tmp_path)
        monkeypatch.setattr("ggufcluster.wiring.open_hub", lambda: mirror)
        told = call(
            str(dense(tmp_path)), "--from", "org/m", "--dir", str(tmp_path / "new"), "--json"
        )
        seen = {(asked.origin, "authorization" in asked.headers) for asked in hub.asked}
    assert json.loads(told)["model"] == f"{tmp_path}/new/m-indexer-00001-of-00002.gguf"
    assert seen == {("hub", True), ("files", False)}


def test_a_model_that_cannot_be_grafted_is_told_before_the_hub_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is not there, or that has its indexer, costs no request."""
    whole = tmp_path / "whole.gguf"
    whole.write_bytes(tiny_m3().to_bytes())
    with HubServer() as hub:
        ours = HuggingFaceHub(endpoint=hub.root, cache=tmp_path)
        monkeypatch.setattr("ggufcluster.wiring.open_hub", lambda: ours)
        with pytest.raises(ModelMissingError, match="no such file"):
            CliRunner().invoke(app, ["graft-indexer", "none.gguf"], catch_exceptions=False)
        with pytest.raises(GraftError, match="indexer"):
            CliRunner().invoke(app, ["graft-indexer", str(whole)], catch_exceptions=False)
    assert hub.asked == []
