"""Compare planned memory with what a real engine reports, case by case.

python3 scripts/gpu/check_plan.py BIN MODEL.gguf [WORKERS] > cases.jsonl

BIN is the folder of llama-server and ggml-rpc-server. WORKERS (1) RPC servers are started on this
machine, beside the GPUs that llama-server sees itself; on a machine without GPU there is no more.
Each case is started until its memory is reserved, then ended. One JSON object a case.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from ggufcluster.core.agreement import agreement
from ggufcluster.core.devices import WorkerMemory, head_devices, worker_devices
from ggufcluster.core.gguf import read_header
from ggufcluster.core.launch import server_command, worker_command
from ggufcluster.core.model import ModelFacts, read_facts
from ggufcluster.core.placement import Device
from ggufcluster.core.plan import Plan, make_plan
from ggufcluster.core.server_log import parse_server_log
from ggufcluster.core.units import GIB
from ggufcluster.core.wish import Wish

if TYPE_CHECKING:
    from ggufcluster.core.command import Command

START_SECONDS = 300.0
HEAD = Device("CPU", "head", 256 * GIB, 256 * GIB, gpu=False, with_head=True)
CASES = (
    Wish(workers=(), context=8192, kv_type="f16", ubatch=512),
    Wish(workers=(), context=131_072, kv_type="q8_0", ubatch=2048),
    Wish(workers=(), context=32_768, kv_type="q8_0", ubatch=2048, parallel=4),
    Wish(workers=(), context=65_536, kv_type="q4_0", ubatch=1024),
    Wish(workers=(), context=65_536, kv_type="q8_0", ubatch=1024, index_type="q8_0"),
    Wish(workers=(), context=32_768, kv_type="q8_0", ubatch=2048, msa="dense"),
    Wish(workers=(), context=8192, kv_type="f16", ubatch=512, msa="generic"),
)


def run(program: Command, log: Path, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start a program that ends with the stack."""
    output: IO[bytes] = stack.enter_context(log.open("wb"))
    words = [str(piece) for piece in program.with_variables()]
    process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def wait_for(word: str, log: Path, process: subprocess.Popen[bytes]) -> list[str]:
    """Return the lines of a log once a word is in it, or the program has ended."""
    deadline = time.monotonic() + START_SECONDS
    while word not in (text := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{log}: no {word!r}\n{text[-3000:]}")
        time.sleep(0.1)
    return text.splitlines()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def facts_of(path: Path) -> ModelFacts:
    """Read the facts of a model in one file; no package is needed for this."""
    with path.open("rb") as stream:
        return read_facts([read_header(stream, size=path.stat().st_size)])


def check(wish: Wish, model: Path, bin_folder: PurePosixPath, *, workers: int) -> dict[str, Any]:
    """Start one case and compare it."""
    server = [str(bin_folder / "llama-server"), "--list-devices"]
    listing = subprocess.run(server, capture_output=True, text=True, check=True).stdout
    own = head_devices(listing)
    ports = free_ports(workers + 1)
    memories = [
        WorkerMemory(
            f"w{port}",
            f"w{port}",
            ((own[0].free // 2, own[0].total) if own else (8 * GIB, 8 * GIB),),
            gpu=bool(own),
            endpoint=f"127.0.0.1:{port}",
        )
        for port in ports[:-1]
    ]
    plan = make_plan(
        replace(wish, port=ports[-1]),
        facts_of(model),
        PurePosixPath(model.absolute()),
        devices=[*worker_devices(memories), *own],
        endpoints=[memory.endpoint for memory in memories],
        head=HEAD,
    )
    return compared(wish, plan, bin_folder)


def compared(wish: Wish, plan: Plan, bin_folder: PurePosixPath) -> dict[str, Any]:
    """Start what was planned and put both numbers side by side."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for endpoint in plan.spec.endpoints:
            address, _, port = endpoint.partition(":")
            program = worker_command(bin_folder=bin_folder, address=address, port=int(port))
            log = Path(folder) / port
            wait_for("listening on", log, run(program, log, stack))
        head = server_command(plan.spec, bin_folder=bin_folder)
        log = Path(folder) / "head"
        report = parse_server_log(wait_for("reserve took", log, run(head, log, stack)))
    found = agreement(plan, report)
    return {
        "context": wish.context,
        "parallel": wish.parallel,
        "kv_type": wish.kv_type,
        "index_type": wish.index_type,
        "ubatch": wish.ubatch,
        "planned_path": plan.needs.workload.path,
        "path": report.msa_path or "dense",
        "layers": report.layers,
        "worst": max(one.deviation for one in found),
        "parts": [
            [one.device, one.part, one.planned, one.reported, round(one.deviation, 5)]
            for one in found
        ],
    }


def main() -> None:
    """Run every case that the command line allows."""
    bin_folder, model = PurePosixPath(sys.argv[1]), Path(sys.argv[2])
    workers = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    for wish in CASES:
        print(json.dumps(check(wish, model, bin_folder, workers=workers)), flush=True)


if __name__ == "__main__":
    main()
