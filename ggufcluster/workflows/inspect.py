"""Find out what a model is, wherever it is, by its headers alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from ggufcluster.core.download.choice import choose, first_of_set, is_model
from ggufcluster.core.inspection import Inspection, inspect_model
from ggufcluster.core.model import shard_names
from ggufcluster.errors import FileChoiceError, ModelMissingError, OfflineError
from ggufcluster.workflows.model_files import (
    FarFile,
    HubFile,
    LocalFile,
    ModelFile,
    read_shards,
    require_files,
)
from ggufcluster.workflows.models import find_model, shard_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.adapters.http import RangeClient
    from ggufcluster.adapters.hub import Hub
    from ggufcluster.core.download.listing import Listing, PublishedFile
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
    paths = shard_paths(find_model(target, models))
    require_files(paths)
    return [LocalFile(path) for path in paths]


def far_files(client: RangeClient, address: str) -> list[FarFile]:
    """Return the files of the set that the file at an address belongs to.

    Raises:
        ModelMissingError: It is no address.
    """
    parts = split_address(address)
    folder, slash, name = parts.path.rpartition("/")
    host = parts.netloc.rpartition("@")[2]
    found = []
    for member in shard_names(unquote(name)):
        path = f"{folder}{slash}{quote(member)}"
        found.append(FarFile(client, urlunsplit(parts._replace(path=path)), f"{host}{path}"))
    return found


def hub_files(
    hub: Hub,
    client: RangeClient,
    repository: str,
    *,
    quant: str | None,
    include: str | None,
    revision: str,
) -> list[ModelFile]:
    """Return the files of a model in a repository; those in the hub's cache are read there.

    Args:
        hub: The hub.
        client: Connection that gives ranges, with the hub's token.
        repository: ``owner/name``.
        quant: Name of a quantisation; None if the repository has one only.
        include: Shell pattern instead.
        revision: Branch, tag or commit.

    Raises:
        DownloadError: There is no such repository, revision or model, or more than one model.
        OfflineError: No request may be made, and the model is not in the cache.
    """
    listing = hub_listing(hub, repository, revision)
    chosen = _one_set(choose(listing, quant=quant, include=include), repository)
    found: list[ModelFile] = []
    for file in chosen:
        cached = hub.cached(listing, file)
        if cached is not None:
            found.append(LocalFile(cached, f"{repository}/{file.path}"))
        elif hub.is_offline:
            raise OfflineError(f"HF_HUB_OFFLINE is set; {file.path} is not here", where=repository)
        else:
            found.append(HubFile(hub, client, listing, file))
    return found


def hub_listing(hub: Hub, repository: str, revision: str) -> Listing:
    """Return what a repository publishes; raises DownloadError."""
    if not hub.is_offline:
        return hub.listing(repository, revision)
    listing = hub.cached_listing(repository, revision)
    if listing is None:
        reason = f"HF_HUB_OFFLINE is set and nothing of revision {revision} is here"
        raise OfflineError(reason, where=repository)
    return listing


def _one_set(chosen: Sequence[PublishedFile], repository: str) -> list[PublishedFile]:
    """Return the files of the only model among those chosen, first shard first."""
    models = [file for file in chosen if is_model(file.path)]
    firsts = sorted({first_of_set(file.path) for file in models})
    if len(firsts) == 1:
        return sorted(models, key=lambda file: file.path)
    reason = f"{len(firsts)} models were chosen" if firsts else "no model was chosen"
    raise FileChoiceError(reason, where=repository, choices=tuple(firsts))


def split_address(address: str) -> SplitResult:
    """Take an address apart; raises ModelMissingError if it is none."""
    try:
        return urlsplit(address)
    except ValueError as error:
        raise ModelMissingError(f"is no address: {error}", path=address) from error
