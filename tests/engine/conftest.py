"""The real engine for this machine's CPU, built once and kept in the XDG cache."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.build_id import Backend
from ggufcluster.core.paths import paths_from_env
from ggufcluster.workflows.build import BuildRequest, build_engine
from ggufcluster.workflows.events import drain

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine


@pytest.fixture(scope="session")
def engine() -> Engine:
    """Return the engine, built now if the cache has none."""
    return drain(
        build_engine(LocalRemote(), BuildRequest(Backend.CPU), paths=paths_from_env(os.environ))
    )
