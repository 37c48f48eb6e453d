"""Toy models on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.gguf import read_header
from ggufcluster.core.gguf_write import GgufModel
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.workflows.toy import write_toys

if TYPE_CHECKING:
    from pathlib import Path

SMALL = ToyShape(layers=4, dense_layers=1)


def test_both_toys_are_written(tmp_path: Path) -> None:
    """Two complete GGUF files with the given template appear, and nothing else."""
    folder = tmp_path / "models" / "toys"
    paths = write_toys(folder, template="the template", shape=SMALL)
    assert [path.name for path in paths] == [
        "toy-minimax-m3-random.gguf",
        "toy-minimax-m3-recite.gguf",
    ]
    assert sorted(folder.iterdir()) == sorted(paths)
    for path in paths:
        with path.open("rb") as file:
            header = read_header(file, size=path.stat().st_size)
        assert header.get("tokenizer.chat_template") == "the template"


def test_existing_toys_are_replaced(tmp_path: Path) -> None:
    """Writing again gives the same bytes in place of whatever was there."""
    first = [path.read_bytes() for path in write_toys(tmp_path, template="t", shape=SMALL)]
    (tmp_path / "toy-minimax-m3-random.gguf").write_bytes(b"old")
    again = [path.read_bytes() for path in write_toys(tmp_path, template="t", shape=SMALL)]
    assert first == again


def test_an_interrupted_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk fills up, neither a half-written model nor a temporary file stays behind."""

    def full(self: GgufModel, sink: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(GgufModel, "write_to", full)
    with pytest.raises(OSError, match="No space"):
        write_toys(tmp_path, template="t", shape=SMALL)
    assert list(tmp_path.iterdir()) == []
