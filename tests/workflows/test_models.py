"""Finding and reading the model that was meant."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ggufcluster.errors import (
    ModelFileError,
    ModelMissingError,
    NotGgufError,
    TruncatedModelError,
)
from ggufcluster.workflows.models import downloaded_models, find_model, read_model
from tests.workflows.tiny_model import write_model

if TYPE_CHECKING:
    from pathlib import Path


def test_the_wanted_model_is_taken(tmp_path: Path) -> None:
    """A named file is found; of a set any shard names the first one."""
    (tmp_path / "m-00002-of-00002.gguf").touch()
    (tmp_path / "one.gguf").touch()
    folder = tmp_path / "nothing"
    assert find_model(str(tmp_path / "one.gguf"), folder) == tmp_path / "one.gguf"
    wanted = str(tmp_path / "m-00002-of-00002.gguf")
    assert find_model(wanted, folder) == tmp_path / "m-00001-of-00002.gguf"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error has the whole path, and says what is wrong with what lies there."""
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    for wanted, words in ((tmp_path / "x.gguf", "no such file"), (pipe, "is no regular file")):
        with pytest.raises(ModelMissingError, match=words) as caught:
            find_model(str(wanted), tmp_path)
        assert caught.value.path == str(wanted)


def test_a_folder_stands_for_the_one_model_in_it(tmp_path: Path) -> None:
    """A folder is enough if it holds one model; none or several in it are told."""
    folder = tmp_path / "org" / "name"
    folder.mkdir(parents=True)
    with pytest.raises(ModelMissingError, match=f"{tmp_path}: no GGUF file lies there"):
        find_model(str(tmp_path), tmp_path)
    (folder / "m-00001-of-00002.gguf").touch()
    (folder / "m-00002-of-00002.gguf").touch()
    assert find_model(str(tmp_path), tmp_path / "else") == folder / "m-00001-of-00002.gguf"
    (folder / "n.gguf").touch()
    with pytest.raises(ModelMissingError, match="2 models lie there: org/name/m-00001-of-00002"):
        find_model(str(tmp_path), tmp_path)


def test_the_only_downloaded_model_needs_no_name(tmp_path: Path) -> None:
    """A single model, in shards and with a projector beside it, is meant without being named."""
    folder = tmp_path / "models" / "org" / "name"
    folder.mkdir(parents=True)
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-m.gguf"):
        (folder / name).touch()
    assert find_model(None, tmp_path / "models") == folder / "m-00001-of-00002.gguf"


def test_no_model_and_too_many_are_told(tmp_path: Path) -> None:
    """Without a model, and with several, the error names the folder and what lies there."""
    with pytest.raises(ModelMissingError, match=f"none lies under {tmp_path}"):
        find_model(None, tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelMissingError, match=r"2 lie under .*: a\.gguf, b\.gguf$"):
        find_model(None, tmp_path)
    for name in "cdef":
        (tmp_path / f"{name}.gguf").touch()
    with pytest.raises(ModelMissingError, match=r"6 lie under .*, e\.gguf, \.\.\.$"):
        find_model(None, tmp_path)
    assert downloaded_models(tmp_path / "nowhere") == []


def test_a_model_is_read(tmp_path: Path) -> None:
    """Facts come from the file's header."""
    facts = read_model(write_model(tmp_path / "m.gguf", layers=3))
    assert (facts.name, facts.layers) == ("Tiny", 3)


def test_missing_shards_are_counted(tmp_path: Path) -> None:
    """A set with holes names how many and which shards are missing."""
    first = write_model(tmp_path / "m-00001-of-00003.gguf")
    with pytest.raises(ModelMissingError, match=r"2 of 3 shards are missing: m-00002") as caught:
        read_model(first)
    assert caught.value.path == str(first)


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    """Another kind of file, a cut one, and one without the basics each have their own error."""
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(NotGgufError) as no_gguf:
        read_model(path)
    whole = write_model(path).read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(TruncatedModelError) as cut:
        read_model(path)
    write_model(path, layers=0)
    with pytest.raises(ModelFileError, match="has 0 layers") as odd:
        read_model(path)
    assert {error.value.path for error in (no_gguf, cut, odd)} == {str(path)}
