"""Find the model that was meant and read what the plan needs of it."""

from __future__ import annotations

from pathlib import Path

from ggufcluster.core.gguf import GgufHeader, read_header
from ggufcluster.core.model import ModelFacts, read_facts, shard_names
from ggufcluster.errors import ModelFileError, ModelMissingError


def find_model(wanted: str | None, folder: Path) -> Path:
    """Return the model's first shard: the one that is wanted, else the only one downloaded.

    Raises:
        ModelMissingError: It is not there, or the choice is not clear.
    """
    if wanted is not None:
        path = Path(wanted).expanduser().absolute()
        if not path.is_file():
            reason = "is a folder, not a GGUF file" if path.is_dir() else "no such file"
            raise ModelMissingError(reason, path=str(path))
        return path.with_name(shard_names(path.name)[0])
    found = downloaded_models(folder)
    if len(found) == 1:
        return found[0]
    if not found:
        raise ModelMissingError(f"no model was named and none lies under {folder}")
    names = ", ".join(str(path.relative_to(folder)) for path in found[:5])
    raise ModelMissingError(f"no model was named and {len(found)} lie under {folder}: {names}")


def downloaded_models(folder: Path) -> list[Path]:
    """Return the first shard of every model under a folder; projectors of vision are none."""
    files = (path for path in folder.rglob("*.gguf") if not path.name.startswith("mmproj"))
    return sorted(path for path in files if shard_names(path.name)[0] == path.name)


def read_model(first: Path) -> ModelFacts:
    """Read the headers of all shards of a model.

    Raises:
        ModelMissingError: A shard is missing.
        NotGgufError: A shard is no GGUF file.
        TruncatedModelError: A shard ends too early.
        ModelFileError: The model lacks what every language model has.
    """
    paths = [first.with_name(name) for name in shard_names(first.name)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ModelMissingError(
            f"{len(missing)} of {len(paths)} shards are missing: {', '.join(missing[:3])}",
            path=str(first),
        )
    try:
        return read_facts([_read(path) for path in paths])
    except ModelFileError as error:
        if error.path is None:
            raise type(error)(error.reason, path=str(first)) from error
        raise


def _read(path: Path) -> GgufHeader:
    with path.open("rb") as stream:
        return read_header(stream, size=path.stat().st_size, path=str(path))
