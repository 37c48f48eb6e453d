"""The record on disk and the right to change it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.paths import paths_from_env
from ggufcluster.core.record import ClusterRecord
from ggufcluster.errors import ClusterBusyError, LocalFileError, RecordError
from ggufcluster.workflows.store import Store

if TYPE_CHECKING:
    from pathlib import Path

RECORD = ClusterRecord(
    id="c",
    created=0.0,
    wish="{}",
    build_id="b",
    head_run="/r/c/head",
    root="http://127.0.0.1:8080",
    api_key_file=None,
    model="M",
    workers=(),
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Give a store in a home of its own."""
    return Store(paths_from_env({"HOME": str(tmp_path)}))


def test_a_record_is_kept_until_forgotten(store: Store) -> None:
    """Nothing, a record, a newer one, nothing again; forgetting twice is no error."""
    assert store.load() is None
    store.save(RECORD)
    store.save(replace(RECORD, ready=True))
    assert store.load() == replace(RECORD, ready=True)
    store.forget()
    store.forget()
    assert store.load() is None


def test_the_folder_is_private(store: Store, tmp_path: Path) -> None:
    """Nobody else may read what is recorded, and no temporary file stays behind."""
    store.save(RECORD)
    folder = tmp_path / ".local/state/ggufcluster"
    assert folder.stat().st_mode & 0o077 == 0
    assert [path.name for path in folder.iterdir()] == ["cluster.json"]


def test_a_damaged_record_is_named(store: Store, tmp_path: Path) -> None:
    """The error has the path of the file."""
    store.save(RECORD)
    path = tmp_path / ".local/state/ggufcluster/cluster.json"
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(RecordError) as caught:
        store.load()
    assert caught.value.path == str(path)


def test_there_is_one_writer_at_a_time(store: Store) -> None:
    """A second command is told who holds the cluster; after the first one it gets its turn."""
    with store.writer(), pytest.raises(ClusterBusyError, match="ggufcluster"), store.writer():
        pass
    with store.writer():
        store.save(RECORD)


def test_a_failed_writer_lets_go(store: Store) -> None:
    """An error while writing does not keep the lock."""

    def fail() -> None:
        with store.writer():
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with store.writer():
        pass


def test_an_unusable_state_folder_is_named(tmp_path: Path) -> None:
    """Where the folder cannot be, reading and writing are errors with its path, not tracebacks."""
    (tmp_path / "file").touch()
    store = Store(paths_from_env({"HOME": "/h", "XDG_STATE_HOME": str(tmp_path / "file")}))
    with pytest.raises(LocalFileError, match="file/ggufcluster: the state folder"), store.writer():
        pass
    with pytest.raises(LocalFileError, match="Not a directory"):
        store.load()
