"""The commands that receive a model file, run in a real shell."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.model_copy import (
    append_command,
    discard_command,
    hash_command,
    look_command,
    parse_look,
    publish_command,
    was_moved,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ggufcluster.core.command import Command


def run(command: Command, *, check: bool = True) -> str:
    """Run a command on this machine and return what it printed."""
    return LocalRemote().run(command, timeout=30, check=check).stdout


def test_a_look_tells_sizes_and_space_and_makes_the_folder(tmp_path: Path) -> None:
    """What is missing has no size; a file and the part of one are told apart."""
    folder = PurePosixPath(tmp_path) / "a b" / "models"
    before = parse_look(run(look_command(folder, "sub/x.gguf")))
    (tmp_path / "a b/models/sub/x.gguf").write_bytes(b"whole")
    (tmp_path / "a b/models/sub/x.gguf.part").write_bytes(b"half")
    after = parse_look(run(look_command(folder, "sub/x.gguf")))
    assert (before.size, before.part) == (None, 0)
    assert (after.size, after.part) == (5, 4)
    assert after.free > 0


def test_bytes_are_added_only_where_the_sender_left_off(tmp_path: Path) -> None:
    """At the known size they are appended; at any other nothing is changed, and that is told."""
    part = PurePosixPath(tmp_path) / "it's.part"
    assert run(append_command(part, 0, b"one")).strip() == "3"
    assert run(append_command(part, 3, b"two")).strip() == "6"
    assert was_moved(run(append_command(part, 3, b"again")))
    assert (tmp_path / "it's.part").read_bytes() == b"onetwo"


def test_a_part_is_hashed_then_named(tmp_path: Path) -> None:
    """The hash is SHA-256 of the bytes; the part is gone once it has its name."""
    part, path = PurePosixPath(tmp_path) / "x.part", PurePosixPath(tmp_path) / "x"
    (tmp_path / "x.part").write_bytes(b"bytes")
    assert run(hash_command(part)).strip() == hashlib.sha256(b"bytes").hexdigest()
    run(publish_command(part, path))
    assert (tmp_path / "x").read_bytes() == b"bytes"
    assert not (tmp_path / "x.part").exists()


def test_a_name_that_is_taken_is_not_taken_over(tmp_path: Path) -> None:
    """Whatever has the name meanwhile stays, and so does the part."""
    part, path = PurePosixPath(tmp_path) / "x.part", PurePosixPath(tmp_path) / "x"
    (tmp_path / "x.part").write_bytes(b"new")
    (tmp_path / "x").write_bytes(b"old")
    result = LocalRemote().run(publish_command(part, path), timeout=30, check=False)
    assert result.exit_code != 0
    assert (tmp_path / "x").read_bytes() == b"old"
    assert (tmp_path / "x.part").read_bytes() == b"new"


def test_a_wrong_part_can_be_removed(tmp_path: Path) -> None:
    """Also one that is not there any more."""
    (tmp_path / "x.part").write_bytes(b"wrong")
    for _ in range(2):
        run(discard_command(PurePosixPath(tmp_path) / "x.part"))
    assert not (tmp_path / "x.part").exists()
