"""A real llama-server on the CPU whose toy says what it is given to say."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ggufcluster import resources
from ggufcluster.adapters.http import HttpApi
from ggufcluster.adapters.local import LocalRemote
from ggufcluster.adapters.ports import free_port
from ggufcluster.core.toolcall_toy import SHAPE
from ggufcluster.core.toy import recite_model
from ggufcluster.workflows.scratch_server import ScratchWorld, scratch_server
from ggufcluster.workflows.toy import publish_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ggufcluster.adapters.http import StreamingApi
    from ggufcluster.core.engine import Engine
    from ggufcluster.core.toy_script import Line


@contextmanager
def toy_server(
    engine: Engine, folder: Path, lines: Sequence[Line]
) -> Iterator[tuple[str, StreamingApi]]:
    """Serve a toy that recites lines until the block ends; give root URL and API."""
    template = (resources.templates() / "toy" / "minimax-m3-toy.jinja").read_text()
    model = publish_model(recite_model(template, SHAPE, lines=lines), folder / "toy.gguf")
    roots: list[str] = []

    def open_api(root: str) -> HttpApi:
        roots.append(root)
        return HttpApi(root)

    world = ScratchWorld(LocalRemote(), engine, open_api, free_port, time.monotonic, time.sleep)
    with scratch_server(world, model) as api:
        yield roots[0], api
