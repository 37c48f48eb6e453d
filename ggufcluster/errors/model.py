"""What can be wrong with a model file."""

from __future__ import annotations

from ggufcluster.errors.root import GgufClusterError


class ModelFileError(GgufClusterError):
    """A model file cannot be used."""

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path


class ModelMissingError(ModelFileError):
    """No such model, or none is configured."""


class NotGgufError(ModelFileError):
    """The file is not a GGUF file."""


class TruncatedModelError(ModelFileError):
    """The file ends before its contents do; sizes are in bytes."""

    def __init__(self, *, have: int, need: int, path: str | None = None) -> None:
        super().__init__(f"the file has {have:,} bytes and needs {need:,}", path=path)
        self.have = have
        self.need = need


class GraftError(ModelFileError):
    """The indexer of an original model cannot be added to a GGUF."""


class MixedShardsError(ModelFileError):
    """The shards are not those of one conversion."""


class UnsupportedTensorError(ModelFileError):
    """The engine cannot compute with a tensor of the file."""
