"""The smoke checks against a real llama-server."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.http import HttpApi
from ggufcluster.adapters.local import LocalRemote
from ggufcluster.adapters.ports import free_port
from ggufcluster.core import smoke as asked
from ggufcluster.workflows import smoke as module
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.scratch_server import ScratchWorld, scratch_server
from ggufcluster.workflows.smoke import smoke

if TYPE_CHECKING:
    from pathlib import Path

    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine


def test_a_toy_passes_what_its_script_knows(
    engine: Engine, toys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default script calls for Paris and answers the result, and knows nothing else."""
    monkeypatch.setattr(asked, "MOST_TOKENS", 96)
    monkeypatch.setattr(module, "_LONG_TOKENS", 300)
    world = ScratchWorld(LocalRemote(), engine, HttpApi, free_port, time.monotonic, time.sleep)
    with scratch_server(world, toys["recite"], context=8192) as api:
        results = drain(smoke(api, clock=time.monotonic))
    passed = {result.name for result in results if not result.failure}
    assert passed == {"one call", "one call, streamed", "a loop"}
    assert {result.name for result in results} - passed == {
        "two calls",
        "a JSON answer",
        "a long prompt",
    }
