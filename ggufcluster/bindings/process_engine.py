"""The one engine of this Python process."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.adapters.engine_library import load_engine
from ggufcluster.adapters.files import read_chunks
from ggufcluster.core.engine import RECORD_NAME, binding_obstacle
from ggufcluster.errors import EngineMismatchError
from ggufcluster.wiring import settings_of, world
from ggufcluster.workflows.build import built_engine
from ggufcluster.workflows.events import drain

if TYPE_CHECKING:
    from ggufcluster.adapters.engine_library import EngineLibrary
    from ggufcluster.core.engine import Engine

_PACKAGE = "llama_cpp_python"


@dataclass(frozen=True, slots=True)
class ProcessEngine:
    """An engine and its libraries, loaded here."""

    engine: Engine
    library: EngineLibrary


def process_engine() -> ProcessEngine:
    """Find the engine that the settings ask for, and load its libraries once.

    Raises:
        EngineMissingError: It is not built.
        EngineMismatchError: It is not of the commit that the Python bindings are made for.
    """
    with world(settings_of({})) as outside:
        engine = drain(built_engine(outside.local, outside.build_request, paths=outside.paths))
    library = str(engine.bin / "libllama.so")
    record = b"".join(read_chunks(Path(engine.folder) / RECORD_NAME)).decode()
    if reason := binding_obstacle(record, metadata.version(_PACKAGE)):
        raise EngineMismatchError(reason, library=library)
    return ProcessEngine(engine, load_engine(Path(engine.bin), engine.fingerprint))
