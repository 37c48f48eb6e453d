"""What goes wrong with building the engine or choosing one."""

from __future__ import annotations

from ggufcluster.errors.root import GgufClusterError


class EngineError(GgufClusterError):
    """The engine cannot be built or is not usable."""


class SourceError(EngineError):
    """The pinned source cannot be had, or is not the pinned one."""

    def __init__(self, reason: str, *, location: str) -> None:
        super().__init__(f"llama.cpp source from {location}: {reason}")
        self.reason = reason
        self.location = location


class PatchError(EngineError):
    """A patch of the series does not apply."""

    def __init__(self, patch: str, *, file: str, reason: str) -> None:
        super().__init__(f"patch {patch} does not apply to {file}: {reason}")
        self.patch = patch
        self.file = file
        self.reason = reason


class ToolchainError(EngineError):
    """A build tool is missing or too old."""

    def __init__(self, tool: str, *, host: str, reason: str) -> None:
        super().__init__(f"{tool} on {host}: {reason}")
        self.tool = tool
        self.host = host
        self.reason = reason


class BuildError(EngineError):
    """Compiling failed; ``excerpt`` holds the compiler's own lines."""

    def __init__(self, stage: str, *, host: str, log: str, excerpt: tuple[str, ...]) -> None:
        super().__init__(f"{stage} failed on {host}; the whole log is {log}")
        self.stage = stage
        self.host = host
        self.log = log
        self.excerpt = excerpt


class EngineMissingError(EngineError):
    """No engine is built for this machine."""

    def __init__(self, build_id: str, *, folder: str) -> None:
        super().__init__(f"no engine {build_id} is built; looked in {folder}")
        self.build_id = build_id
        self.folder = folder


class EngineMismatchError(EngineError):
    """Engine and Python bindings are not of one llama.cpp; they would read wrong memory."""

    def __init__(self, reason: str, *, library: str) -> None:
        super().__init__(f"{library} cannot be used with the Python bindings: {reason}")
        self.reason = reason
        self.library = library
