"""Keep the record of the cluster in the head's state folder, one writer at a time."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.adapters import files
from ggufcluster.core.record import ClusterRecord, from_json, to_json
from ggufcluster.errors import ClusterBusyError, LocalFileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.paths import HostPaths


class Store:
    """The cluster record of one user on one head."""

    def __init__(self, paths: HostPaths) -> None:
        self._folder = Path(paths.state)
        self._path = self._folder / "cluster.json"

    def load(self) -> ClusterRecord | None:
        """Return the record, or None if no cluster was started.

        Raises:
            RecordError: The record is damaged or of another version.
            LocalFileError: It cannot be read.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LocalFileError(_words(error), path=str(self._path)) from error
        return from_json(data, source=str(self._path))

    def save(self, record: ClusterRecord) -> None:
        """Write the record, whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.replace_file(self._path, to_json(record))

    def forget(self) -> None:
        """Remove the record."""
        self._path.unlink(missing_ok=True)

    @contextmanager
    def writer(self) -> Iterator[None]:
        """Hold the right to change the cluster.

        Raises:
            ClusterBusyError: Another command holds it.
            LocalFileError: The state folder cannot be written.
        """
        lock = files.FileLock(self._folder / "lock")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            holder = lock.acquire("ggufcluster")
        except OSError as error:
            reason = f"the state folder cannot be used: {_words(error)}"
            raise LocalFileError(reason, path=str(self._folder)) from error
        if holder:
            raise ClusterBusyError("the cluster", holder=holder)
        try:
            yield
        finally:
            lock.release()


def _words(error: OSError) -> str:
    return error.strerror or str(error)
