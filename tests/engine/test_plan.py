"""What was planned against what the real engine reports after a start."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.core.agreement import agreement
from ggufcluster.core.devices import WorkerMemory, worker_devices
from ggufcluster.core.launch import server_command, worker_command
from ggufcluster.core.placement import Device
from ggufcluster.core.plan import make_plan
from ggufcluster.core.server_log import ServerReport, parse_server_log
from ggufcluster.core.toy import random_model
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.core.units import GIB
from ggufcluster.core.wish import Wish
from ggufcluster.workflows.models import read_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.command import Command
    from ggufcluster.core.engine import Engine
    from ggufcluster.core.plan import Plan

pytestmark = pytest.mark.engine

_TOLERANCE = 0.05
_START_SECONDS = 120.0
_RESERVED = "reserve took"
HEAD = Device("CPU", "head", 64 * GIB, 64 * GIB, gpu=False, with_head=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy that is wider, deeper and larger in its vocabulary than the usual one."""
    shape = ToyShape(
        layers=10,
        dense_layers=3,
        width=256,
        queries_per_group=4,
        experts=16,
        expert_width=128,
        dense_width=512,
        context=1 << 17,
    )
    path = tmp_path_factory.mktemp("model") / "wide.gguf"
    path.write_bytes(random_model("", shape, vocabulary_size=8192).to_bytes())
    return path


@contextmanager
def running(command: Command, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with its output in a file, and end it."""
    env = os.environ | {name: str(value) for name, value in command.env.items()}
    with log.open("wb") as output:
        words = command.plain_argv()
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for(word: str, log: Path, process: subprocess.Popen[bytes]) -> list[str]:
    """Return the lines of a log once a word is in it."""
    deadline = time.monotonic() + _START_SECONDS
    while word not in (text := log.read_text(errors="replace")):
        assert process.poll() is None, text[-2000:]
        assert time.monotonic() < deadline, text[-2000:]
        time.sleep(0.05)
    return text.splitlines()


def start(plan: Plan, engine: Engine, folder: Path) -> ServerReport:
    """Start workers and head of a plan until memory is reserved; return what was said."""
    bin_folder = PurePosixPath(engine.folder) / "bin"
    with ExitStack() as stack:
        for number, endpoint in enumerate(plan.spec.endpoints):
            address, _, port = endpoint.partition(":")
            program = worker_command(bin_folder=bin_folder, address=address, port=int(port))
            log = folder / f"worker-{number}.log"
            wait_for("listening on", log, stack.enter_context(running(program, log)))
        log = folder / "head.log"
        head = stack.enter_context(running(server_command(plan.spec, bin_folder=bin_folder), log))
        return parse_server_log(wait_for(_RESERVED, log, head))


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def planned(wish: Wish, model: Path, *, ports: list[int]) -> Plan:
    """Plan for workers of unequal memory on all ports but the last, which is the head's."""
    memories = [
        WorkerMemory(
            f"w{number}",
            f"w{number}",
            (((4 + 4 * number) * GIB, (4 + 4 * number) * GIB),),
            gpu=False,
            endpoint=f"127.0.0.1:{port}",
        )
        for number, port in enumerate(ports[:-1])
    ]
    return make_plan(
        replace(wish, port=ports[-1]),
        read_model(model),
        PurePosixPath(model),
        devices=worker_devices(memories),
        endpoints=[memory.endpoint for memory in memories],
        head=HEAD,
    )


@pytest.mark.parametrize(
    ("workers", "wish"),
    [
        (1, Wish(workers=(), context=4096, kv_type="f16", ubatch=512, msa="native")),
        (2, Wish(workers=(), context=8192, kv_type="q8_0", ubatch=256, msa="native")),
        (2, Wish(workers=(), context=3000, kv_type="f16", ubatch=128, parallel=3)),
        (3, Wish(workers=(), context=2048, kv_type="q4_0", ubatch=512, parallel=2, msa="dense")),
        (3, Wish(workers=(), context=4096, ubatch=512, index_type="q8_0", msa="native")),
        (0, Wish(workers=(), context=2048, kv_type="q8_0", ubatch=256)),
    ],
    ids=["one native", "two native", "slots generic", "three dense", "q8_0 index", "alone"],
)
def test_the_engine_reserves_what_was_planned(
    engine: Engine, model: Path, tmp_path: Path, workers: int, wish: Wish
) -> None:
    """Weights, caches, compute and output buffers of every device are within 5 % of the plan."""
    plan = planned(wish, model, ports=free_ports(workers + 1))

    report = start(plan, engine, tmp_path)

    found = agreement(plan, report)

    assert plan.placement is not None
    assert {s.device.name: s.layers for s in plan.placement.shares} == report.layers
    assert len(found) == 3 * max(workers, 1) + (3 if workers else 0)
    assert {
        (one.device, one.part): one.deviation for one in found if one.deviation > _TOLERANCE
    } == {}
    assert all(one.reported for one in found if one.part != "outputs")


def run(folder: Path, engine: Engine, port: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with folders of its own and the shared engine cache."""
    env = os.environ | {
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CACHE_HOME": str(Path(engine.folder).parents[2]),
        "GGUFCLUSTER_HEAD_PORT": str(port),
        "GGUFCLUSTER_CTX": "2048",
        "GGUFCLUSTER_UBATCH": "256",
    }
    command = [sys.executable, "-m", "ggufcluster", *words]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=180, check=False
    )


def test_up_does_what_plan_said(
    engine: Engine, toys: dict[str, Path], tmp_path: Path, free_port: int
) -> None:
    """Layers and context of `plan --json` are those of the running cluster, as is the memory."""
    words = ("-w", "local:2", "--model", str(toys["recite"]))
    plan = run(tmp_path, engine, free_port, "plan", *words, "--json")
    up = run(tmp_path, engine, free_port, "up", *words, "--json")
    record: dict[str, Any] = json.loads(
        run(tmp_path, engine, free_port, "status", "--json").stdout
    )["record"]
    down = run(tmp_path, engine, free_port, "down")

    assert plan.returncode == 0, plan.stderr
    assert up.returncode == 0, up.stderr
    assert down.returncode == 0
    said = json.loads(plan.stdout)
    assert [(d["device"], d["first_layer"]) for d in said["devices"]] == [
        (share["device"], share["first"]) for share in record["shares"]
    ]
    assert said["context"] == record["context"] == 2048
    assert "memory on every device as planned" in up.stderr
