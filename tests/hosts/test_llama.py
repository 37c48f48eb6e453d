"""A model in a Python process with its layers on two machines, over real SSH."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ggufcluster.core.engine import Engine
    from tests.hosts.netns import Hosts

pytestmark = pytest.mark.engine

_PROGRAM = """
    import json, sys, time
    from ggufcluster import Llama
    from ggufcluster.errors import WorkerLostError

    def load(*workers):
        return Llama(sys.argv[1], workers=workers, n_ctx=1024, n_ubatch=128)

    def greedy(model):
        steps = model.generate(list(range(10, 200)), temp=0.0)
        return [int(next(steps)) for _ in range(12)]

    with load() as near, load("10.20.20.2", "10.20.20.3") as far:
        tokens = [greedy(near), greedy(far)]
        endpoints = sorted(far._engine.endpoints)
        print("READY", flush=True)
        lost, deadline = "", time.monotonic() + 120
        while not lost and time.monotonic() < deadline:
            try:
                greedy(far)
            except WorkerLostError as error:
                lost = error.worker
    print(json.dumps({"tokens": tokens, "endpoints": endpoints, "lost": lost}))
"""


@pytest.fixture
def _engine_on_head(hosts: Hosts, engine: Engine) -> Iterator[None]:
    """The engine in the cache of host 1; workers have none."""
    target = hosts[1].folder / "cache" / "ggufcluster" / "engines" / engine.build_id
    shutil.copytree(engine.folder, target, symlinks=True)
    yield
    for number in (1, 2, 3):
        shutil.rmtree(hosts[number].folder / "cache", ignore_errors=True)


@pytest.mark.usefixtures("_engine_on_head")
def test_two_machines_answer_like_one_and_a_lost_one_is_named(
    hosts: Hosts, toys: dict[str, Path]
) -> None:
    """Over SSH workers tokens are those of one machine; a worker that dies is named; none stays."""
    words = [sys.executable, "-c", textwrap.dedent(_PROGRAM), str(toys["random"])]
    program = hosts.start_in(1, words)
    assert program.stdout
    try:
        begun = program.stdout.readline()
        assert begun == "READY\n", begun + program.communicate(timeout=PATIENCE)[0]
        for pid, line in hosts.processes(3).items():
            if "ggml-rpc-server" in line:
                os.kill(pid, signal.SIGKILL)
        output = program.communicate(timeout=2 * PATIENCE)[0]
    finally:
        program.kill()
        program.wait()
    found = json.loads(output.splitlines()[-1])

    assert program.returncode == 0
    assert found["endpoints"] == ["10.20.20.2:50052", "10.20.20.3:50052"]
    assert found["tokens"][0] == found["tokens"][1]
    assert found["lost"] == "10.20.20.3:50052"
    # The SSH servers need a moment to end the sessions of a client that has gone.
    wait_for(lambda: not any(hosts.processes(number) for number in (1, 2, 3)))
