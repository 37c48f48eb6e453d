"""What goes wrong with an engine inside the Python process."""

from __future__ import annotations

from ggufcluster.errors.root import GgufClusterError


class BindingError(GgufClusterError):
    """A model in this Python process cannot be used."""


class ModelClosedError(BindingError):
    """The model was closed."""

    def __init__(self, model: str) -> None:
        super().__init__(f"{model} was closed")
        self.model = model


class ForkedProcessError(BindingError):
    """The model belongs to the process that this one was forked from."""

    def __init__(self, model: str, *, owner: int) -> None:
        super().__init__(f"{model} belongs to process {owner}, from which this one was forked")
        self.model = model
        self.owner = owner


class EngineFailedError(BindingError):
    """The engine gave up on a check of its own; the model cannot be used any more."""

    def __init__(self, model: str, *, reason: str) -> None:
        super().__init__(f"the engine failed on {model}: {reason}")
        self.model = model
        self.reason = reason


class ModelCallError(BindingError):
    """A call asks a model for what it cannot do; the model itself is well."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the model cannot do that: {reason}")
        self.reason = reason


class ChatRequestError(BindingError):
    """The engine cannot serve a chat request, or cannot read what the model wrote for it."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the chat request cannot be served: {reason}")
        self.reason = reason
