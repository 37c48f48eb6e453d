"""Bring the model that a program names by repository and file, as llama_cpp does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ggufcluster.core.download.choice import choose, first_shards
from ggufcluster.core.download.listing import require_repository_name
from ggufcluster.errors import ConfigError, FileChoiceError
from ggufcluster.workflows.download import DownloadRequest, download

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ggufcluster.adapters.hub import Hub
    from ggufcluster.workflows.events import Workflow

_SHARD = re.compile(r"-\d{5}(-of-\d{5}\.gguf)$")


def bring_model(
    repository: str, folder: Path, *, names: Sequence[str | None], hub: Hub
) -> Workflow[Path]:
    """Download a model with what belongs to it; return the file to load.

    Args:
        repository: ``owner/name``.
        folder: Where the files go.
        names: File or shell pattern of the model, None if there is only one; then of other files.
            The name of one shard stands for its set.
        hub: Where it is.

    Raises:
        ConfigError: That is no name of a repository.
        FileChoiceError: Several models fit, or nothing does.
        DownloadError: See the tree.
    """
    try:
        require_repository_name(repository)
    except ValueError as error:
        raise ConfigError(str(error), source="repo_id") from None
    first, *others = dict.fromkeys(_whole_set(name) for name in names)
    if first and not hub.is_offline:
        _require_one(_published(first, repository, hub), first, repository)
    done = yield from download(DownloadRequest(repository, folder, include=first), hub=hub)
    for name in others:
        yield from download(DownloadRequest(repository, folder, include=name), hub=hub)
    if not done.models:
        raise FileChoiceError(f"{first!r} is no model", where=repository, choices=())
    _require_one([str(path) for path in done.models], first, repository)  # nobody looked offline
    return done.models[0]


def _whole_set(name: str | None) -> str | None:
    return name and _SHARD.sub(r"-?????\1", name)


def _published(pattern: str, repository: str, hub: Hub) -> tuple[str, ...]:
    return first_shards(choose(hub.listing(repository, "main"), include=pattern))


def _require_one(models: Sequence[str], pattern: str | None, repository: str) -> None:
    if len(models) > 1:
        reason = f"has {len(models)} models that fit {pattern!r}: {', '.join(models)}"
        raise FileChoiceError(reason, where=repository, choices=tuple(models))
