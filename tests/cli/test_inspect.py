"""`inspect` on the command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ggufcluster.adapters.hub import HuggingFaceHub
from ggufcluster.cli.app import app, run
from ggufcluster.core.gguf_write import GgufModel
from ggufcluster.testing import HubServer
from tests.workflows.tiny_model import tiny_m3, write_model


def call(*words: str) -> str:
    """Run the command and return what it printed to stdout."""
    result = CliRunner().invoke(app, ["inspect", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def fail(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """Run the command and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["ggufcluster", "inspect", *words])
    with pytest.raises(SystemExit) as caught:
        run()
    return caught.value.code


@pytest.fixture
def sparse(tmp_path: Path) -> Path:
    """A MiniMax-M3 with its indexer."""
    return write_model(
        tmp_path / "m.gguf", architecture="minimax-m3", indexer=True, template="{{ messages }}"
    )


def test_the_tables_tell_what_the_model_is(sparse: Path) -> None:
    """Every line that people look for is there, within 80 columns."""
    lines = call(str(sparse)).splitlines()
    told = {line[:17].strip(): line[18:] for line in lines[: lines.index("")]}
    assert told["architecture"] == "minimax-m3"
    assert told["attention"] == "sparse: the indexer is there"
    assert told["layers"] == "4, the first 1 without experts"
    assert told["experts"] == "2, of which a token uses 1, 1 shared"
    assert told["context"] == "8,192 tokens"
    assert told["tokenizer"] == "gpt2 (minimax-m2), 512 tokens"
    assert told["template"] == "default: generic parser, used"
    assert told["size"].endswith("in 1 file, 74 tensors")
    assert any(line.startswith("indexer") and "F32 x 12" in line for line in lines)
    assert any(line.split()[:1] == ["1-3"] for line in lines)
    assert max(map(len, lines)) <= 80


def test_scripts_get_json(sparse: Path) -> None:
    """The same in numbers, as one JSON value."""
    found = json.loads(call(str(sparse), "--json"))
    assert found["kind"] == "m3_sparse"
    assert found["indexer"] is True
    assert len(found["layer_bytes"]) == found["layers"] == 4
    total = sum(found["layer_bytes"]) + found["embedding_bytes"] + found["output_bytes"]
    assert found["weight_bytes"] == total
    assert sum(group["bytes"] for group in found["quantisation"]) == total
    assert found["kv_bytes_per_token"]["f16"] == 4 * 2 * 32 * 2 + 3 * 32 * 2
    assert found["files"] == [
        {"path": str(sparse), "size": sparse.stat().st_size, "tensors": 74},
    ]
    assert found["warnings"] == []


def test_a_dense_m3_comes_with_a_note(tmp_path: Path) -> None:
    """What is missing is told in the table and below it."""
    path = write_model(tmp_path / "d.gguf", architecture="minimax-m3")
    lines = call(str(path))
    assert "dense: no indexer" in lines
    assert "note: Tiny has no indexer tensors" in lines
    assert "`ggufcluster graft-indexer`" in lines
    assert max(map(len, lines.splitlines())) <= 80
    assert "none: llama.cpp would guess one" in lines


def test_a_template_of_the_settings_takes_the_place(
    sparse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a template in the settings, the model's own is shown as not used."""
    monkeypatch.setenv("GGUFCLUSTER_TEMPLATE", str(tmp_path / "mine.jinja"))
    text = call(str(sparse))
    assert "mine.jinja is used (a setting)" in text
    assert "default: generic parser, not used" in text
    assert json.loads(call(str(sparse), "--json"))["template_override"].endswith("mine.jinja")


def test_an_address_is_inspected_by_its_header(sparse: Path) -> None:
    """A file far away gives the same answer."""
    with HubServer() as hub:
        hub.publish("me/m", {"m.gguf": sparse})
        far = json.loads(call(hub.address("me/m", "m.gguf"), "--json"))
    near = json.loads(call(str(sparse), "--json"))
    assert far.pop("files")[0]["path"].startswith("127.0.0.1:")
    near.pop("files")
    assert far == near


def test_a_repository_is_inspected_with_quant(
    sparse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that choose a model of a repository reach the hub."""
    with HubServer() as server:
        server.publish("me/m", {"a-Q4_0.gguf": sparse, "a-Q8_0.gguf": b"x"}, revision="v1")
        hub = HuggingFaceHub(endpoint=server.root, cache=tmp_path)
        monkeypatch.setattr("ggufcluster.wiring.open_hub", lambda: hub)
        found = json.loads(call("me/m", "--quant", "Q4_0", "--revision", "v1", "--json"))
        assert found["files"][0]["path"] == "me/m/a-Q4_0.gguf"
        assert fail(monkeypatch, "me/m", "--quant", "Q4_0") == 84
        assert fail(monkeypatch, "me/none") == 83


def test_without_a_name_the_only_downloaded_model_is_meant(sparse: Path) -> None:
    """The same model that `up` would run."""
    folder = Path(os.environ["HOME"], ".local/share/ggufcluster/models")
    folder.mkdir(parents=True)
    sparse.rename(folder / "m.gguf")
    assert json.loads(call("--json"))["name"] == "Tiny"


def test_what_cannot_run_is_an_error_with_a_code(
    sparse: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Missing, foreign, cut and damaged files each end with a code of their own."""
    (tmp_path / "page.gguf").write_bytes(b"<html>" * 100)
    (tmp_path / "cut.gguf").write_bytes(sparse.read_bytes()[:-100])
    damaged = GgufModel(tiny_m3().metadata, tiny_m3().tensors[:-1])
    (tmp_path / "damaged.gguf").write_bytes(damaged.to_bytes())
    codes = {
        name: fail(monkeypatch, str(tmp_path / f"{name}.gguf"))
        for name in ("none", "page", "cut", "damaged")
    }
    assert codes == {"none": 40, "page": 41, "cut": 42, "damaged": 43}
    assert "1 of 12 indexer tensors are missing" in " ".join(capsys.readouterr().err.split())
