"""Find the model that was meant and read what the plan needs of it."""

from __future__ import annotations

from pathlib import Path

from ggufcluster.core.download.choice import is_model
from ggufcluster.core.inspection import Inspection, inspect_model
from ggufcluster.core.model import ModelFacts, shard_names
from ggufcluster.errors import ModelMissingError
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.model_files import LocalFile, read_shards, require_files

_NAMED = 5


def find_model(wanted: str | None, folder: Path) -> Path:
    """Return the model's first shard: the one that is wanted, else the only one downloaded.

    Args:
        wanted: A file, any shard of a set, or a folder with one model in it.
        folder: Where downloads lie.

    Raises:
        ModelMissingError: It is not there, or the choice is not clear.
    """
    if wanted is not None:
        path = Path(wanted).expanduser().absolute()
        if path.is_dir():
            return _only_model(path)
        if not path.is_file():
            reason = "is no regular file" if path.exists() else "no such file"
            raise ModelMissingError(reason, path=str(path))
        return path.with_name(shard_names(path.name)[0])
    found = downloaded_models(folder)
    if len(found) == 1:
        return found[0]
    if not found:
        raise ModelMissingError(f"no model was named and none lies under {folder}")
    names = _named(found, folder)
    raise ModelMissingError(f"no model was named and {len(found)} lie under {folder}: {names}")


def _only_model(folder: Path) -> Path:
    found = downloaded_models(folder)
    if len(found) == 1:
        return found[0]
    several = f"{len(found)} models lie there: {_named(found, folder)}"
    reason = several if found else "no GGUF file lies there"
    raise ModelMissingError(reason, path=str(folder))


def _named(found: list[Path], folder: Path) -> str:
    names = [str(path.relative_to(folder)) for path in found]
    more = ["..."] if len(names) > _NAMED else []
    return ", ".join(names[:_NAMED] + more)


def downloaded_models(folder: Path) -> list[Path]:
    """Return the first shard of every model under a folder; projectors of vision are none."""
    files = (path for path in folder.rglob("*.gguf") if is_model(path.name))
    return sorted(path for path in files if shard_names(path.name)[0] == path.name)


def read_model(first: Path) -> ModelFacts:
    """Read the headers of all shards of a model; `judge_model` without the rest."""
    return judge_model(first).facts


def judge_model(first: Path) -> Inspection:
    """Read the headers of all shards of a model on this machine and judge it.

    Raises:
        ModelMissingError: A shard is missing.
        NotGgufError: A shard is no GGUF file.
        TruncatedModelError: A shard ends too early.
        MixedShardsError: The shards are not of one set.
        UnsupportedTensorError: The engine cannot compute with one of the tensors.
        ModelFileError: The model lacks what every language model has.
    """
    paths = shard_paths(first)
    require_files(paths)
    return inspect_model(drain(read_shards([LocalFile(path) for path in paths])))


def shard_paths(path: Path) -> list[Path]:
    """Return the files of the set that a file belongs to, in order."""
    return [path.with_name(name) for name in shard_names(path.name)]
