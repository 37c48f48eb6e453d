"""What the tests of the bindings share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bindings.in_process import Programs

if TYPE_CHECKING:
    from pathlib import Path

    from ggufcluster.core.engine import Engine


@pytest.fixture
def programs(tmp_path: Path, engine: Engine, toys: dict[str, Path]) -> Programs:
    """Programs that use the toy with random weights."""
    return Programs(tmp_path, engine, toys["random"])
