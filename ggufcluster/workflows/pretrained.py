"""Bring the model that a program names by repository and file, as llama_cpp does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ggufcluster.core.download.choice import choose, first_of_set, is_model
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
        _require_one(first, repository, hub)
    done = yield from download(DownloadRequest(repository, folder, include=first), hub=hub)
    for name in others:
        yield from download(DownloadRequest(repository, folder, include=name), hub=hub)
    if not done.models:
        raise FileChoiceError(f"{first!r} is no model", where=repository, choices=())
    return done.models[0]


def _whole_set(name: str | None) -> str | None:
    return name and _SHARD.sub(r"-?????\1", name)


def _require_one(pattern: str, repository: str, hub: Hub) -> None:
    chosen = choose(hub.listing(repository, "main"), include=pattern)
    sets = sorted({first_of_set(file.path) for file in chosen if is_model(file.path)})
    if len(sets) > 1:
        reason = f"has {len(sets)} models that fit {pattern!r}: {', '.join(sets)}"
        raise FileChoiceError(reason, where=repository, choices=tuple(sets))
