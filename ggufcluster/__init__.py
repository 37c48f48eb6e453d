"""Run one big GGUF model over a handful of machines.

::

    import ggufcluster

    with ggufcluster.Cluster.up(["10.20.20.2"], model="m3-00001-of-00005.gguf") as cluster:
        client = cluster.client()
        answer = client.chat.completions.create(model="", messages=[...])

    llama = ggufcluster.Llama("m3-00001-of-00005.gguf", workers=["10.20.20.2"])
    llama.create_chat_completion([...], tools=[...], reasoning_effort="none")

Names are imported when they are first used; `Llama` and `AsyncLlama` load the engine then, which
must be built.
Errors are in `ggufcluster.errors`. Nothing prints; what the engine says goes to the logger
``ggufcluster.engine``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ggufcluster.bindings.async_llama import AsyncLlama as AsyncLlama
    from ggufcluster.bindings.cluster import Cluster as Cluster
    from ggufcluster.bindings.llama import Llama as Llama
    from ggufcluster.bindings.steps import Steps as Steps

__version__ = "0.1.0"
__all__ = ["AsyncLlama", "Cluster", "Llama", "Steps", "__version__"]

_HOMES = {
    "AsyncLlama": "ggufcluster.bindings.async_llama",
    "Cluster": "ggufcluster.bindings.cluster",
    "Llama": "ggufcluster.bindings.llama",
    "Steps": "ggufcluster.bindings.steps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ggufcluster' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
