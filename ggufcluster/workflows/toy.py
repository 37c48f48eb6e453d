"""Write the toy models as files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.core.toy import RANDOM_NAME, RECITE_NAME, random_model, recite_model
from ggufcluster.core.toy_script import DEFAULT_LINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.core.gguf_write import GgufModel
    from ggufcluster.core.toy_network import ToyShape
    from ggufcluster.core.toy_script import Line


def write_toys(
    folder: Path,
    *,
    template: str,
    shape: ToyShape | None = None,
    lines: Sequence[Line] = DEFAULT_LINES,
    seed: int = 1,
) -> list[Path]:
    """Write both toy models into `folder` and return their paths, random first.

    `template` is the chat template's text. The folder is made if it is missing. A file appears
    under its name only when it is complete; an older one is replaced. Raises OSError.
    """
    models = {
        RANDOM_NAME: random_model(template, shape, seed=seed),
        RECITE_NAME: recite_model(template, shape, lines=lines, seed=seed),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return [publish_model(model, folder / f"{name}.gguf") for name, model in models.items()]


def publish_model(model: GgufModel, path: Path) -> Path:
    """Write a model under its name, whole or not at all, and return the path."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            model.write_to(file)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
