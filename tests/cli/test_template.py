"""The template commands: what they print, write and exit with."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from ggufcluster.cli import app as module
from ggufcluster.cli.app import run
from ggufcluster.core.gguf_write import GgufModel, string

SHAPE = (Path(__file__).parents[1] / "data" / "templates" / "m3-shape.jinja").read_text()
OTHER = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"


@pytest.fixture(autouse=True)
def _same_signals_after() -> object:
    """Put back the signal handlers that a run sets."""
    before = {number: signal.getsignal(number) for number in module._ENDINGS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder and home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def model(folder: Path, text: str | None, name: str = "m.gguf") -> Path:
    """Write a GGUF with a chat template, beside the current folder."""
    metadata = {"general.architecture": string("minimax-m3")}
    if text is not None:
        metadata["tokenizer.chat_template"] = string(text)
    path = folder.parent / name
    path.write_bytes(GgufModel(metadata, []).to_bytes())
    return path


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """Run `ggufcluster template` in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["ggufcluster", "template", *words])
    with pytest.raises(SystemExit) as caught:
        run()
    return caught.value.code


def test_regen_names_its_file_after_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --out the file lies in the current folder, without the shard's number."""
    path = model(folder, SHAPE, "big-00001-of-00003.gguf")
    assert not call(monkeypatch, "regen", "--gguf", str(path), "--no-server")
    assert capsys.readouterr().out == "big.hybrid.jinja\n"
    assert [one.name for one in folder.iterdir()] == ["big.hybrid.jinja"]


def test_json_names_file_style_and_origin(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts get the file, the style, and which template of which model it was made from."""
    path = model(folder, SHAPE)
    words = ("--style", "native", "--out", "x/t.jinja", "--no-server", "--json")
    assert not call(monkeypatch, "regen", "--gguf", str(path), *words)
    told = json.loads(capsys.readouterr().out)
    assert told == {"file": "x/t.jinja", "style": "native", "from": str(path), "name": "default"}
    assert (folder / "x" / "t.jinja").read_text().endswith(SHAPE)


@pytest.mark.parametrize(
    ("text", "words", "code", "told"),
    [
        (None, (), 46, "brings no chat template"),
        (OTHER, (), 47, "--style native"),
        (SHAPE.replace("To call tools", "x"), (), 48, "tool instructions"),
        (SHAPE + "{{ raise_exception('no') }}", (), 49, "one question"),
        (SHAPE, ("--style", "both"), 3, "neither hybrid nor native"),
        (SHAPE, ("--name", "rag"), 46, "none is named rag"),
    ],
)
def test_each_fault_has_its_exit_code(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    words: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    """A clear message, an exit code of its own, and no file."""
    path = model(folder, text)
    assert call(monkeypatch, "regen", "--gguf", str(path), "--no-server", *words) == code
    assert told in capsys.readouterr().err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "code"), [(None, 40), (b"<html>" * 99, 41), (b"GGUF\3\0\0\0" + bytes(4), 42)]
)
def test_what_is_no_gguf_is_told_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None, code: int
) -> None:
    """No such file, another kind of file, a file that ends too early."""
    path = folder.parent / "m.gguf"
    if data is not None:
        path.write_bytes(data)
    assert call(monkeypatch, "regen", "--gguf", str(path), "--no-server") == code
    assert list(folder.iterdir()) == []


def test_show_prints_the_template_and_nothing_else_on_stdout(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is printed can be kept as a file; what it is stands on stderr."""
    path = model(folder, SHAPE)
    assert not call(monkeypatch, "show", "--gguf", str(path))
    printed = capsys.readouterr()
    assert printed.out == SHAPE
    assert "MiniMax-M3" in printed.err
    assert not call(monkeypatch, "show", "--gguf", str(path), "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["parser"], told["style"], told["text"]) == ("minimax-m3", None, SHAPE)


def test_diff_shows_what_a_style_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A unified diff against the model's own template; none if nothing differs."""
    path = model(folder, SHAPE)
    assert not call(monkeypatch, "diff", "--gguf", str(path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["--- m.gguf", "+++ hybrid style"]
    assert any(line.startswith("-") and "To call tools" in line for line in lines)
    same = folder / "same.jinja"
    same.write_text(SHAPE)
    assert not call(monkeypatch, "diff", str(same), "--gguf", str(path))
    assert capsys.readouterr().out == ""


def test_check_wants_one_thing_to_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a model, not both and not neither."""
    path = model(folder, SHAPE)
    assert call(monkeypatch, "check", "--no-server") == 3
    assert call(monkeypatch, "check", "x.jinja", "--gguf", str(path), "--no-server") == 3
    assert not call(monkeypatch, "check", "--gguf", str(path), "--no-server", "-q")
