"""Find out what a model is, wherever it is, by its headers alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ggufcluster.core.inspection import Inspection, inspect_model
from ggufcluster.core.model import shard_names
from ggufcluster.errors import ModelMissingError
from ggufcluster.workflows.model_files import (
    FarFile,
    LocalFile,
    ModelFile,
    read_shards,
    require_files,
)
from ggufcluster.workflows.models import downloaded_models, find_model, shard_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.adapters.http import RangeClient
    from ggufcluster.workflows.events import Workflow

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")


def inspect(files: Sequence[ModelFile]) -> Workflow[Inspection]:
    """Read the headers of a model's files, first shard first, and judge the model.

    Raises:
        ModelFileError: The engine cannot run it; the class tells why.
        DownloadError: A server does not give what was asked for.
    """
    return inspect_model((yield from read_shards(files)))


def is_repository(target: str) -> bool:
    """Tell whether a text names a repository of the hub and not something on this machine."""
    is_name = bool(_REPOSITORY.match(target)) and not target.endswith(".gguf")
    return is_name and not Path(target).exists()


def is_address(target: str) -> bool:
    """Tell whether a text is the address of a file."""
    return target.startswith(("http://", "https://"))


def local_files(target: str | None, models: Path) -> list[LocalFile]:
    """Return the files of a model of this machine.

    Args:
        target: Any of its files, or a folder that holds just this model; None for the only
            downloaded model.
        models: Folder of downloaded models.

    Raises:
        ModelMissingError: It is not there, not whole, or the choice is not clear.
    """
    if target is not None and Path(target).expanduser().is_dir():
        target = str(_only_model(Path(target).expanduser()))
    paths = shard_paths(find_model(target, models))
    require_files(paths)
    return [LocalFile(path) for path in paths]


def far_files(client: RangeClient, address: str) -> list[FarFile]:
    """Return the files of the set that the file at an address belongs to."""
    parts = urlsplit(address)
    folder, slash, name = parts.path.rpartition("/")
    host = parts.netloc.rpartition("@")[2]
    found = []
    for member in shard_names(unquote(name)):
        path = f"{folder}{slash}{quote(member)}"
        found.append(FarFile(client, urlunsplit(parts._replace(path=path)), f"{host}{path}"))
    return found


def _only_model(folder: Path) -> Path:
    found = downloaded_models(folder)
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(path.relative_to(folder)) for path in found[:5])
    reason = f"{len(found)} models lie there: {names}" if found else "no GGUF file lies there"
    raise ModelMissingError(reason, path=str(folder))
