"""Time the same work through `ggufcluster.Llama`, llama-server and llama-bench, and count leaks.

    python scripts/bench_bindings.py --output raw.json [--workers 2] [--loads 50]

A random model of some 240 MB with MiniMax-M3's vocabulary is written, a cluster brought up and the
same model loaded into this process, with one thread each. Every way runs once a round, in turn; the
texts must be equal. Ratios are medians over the rounds of our time by that of llama-server in the
same round. Processor time, ours of this process and theirs of llama-server and this process, says
more than the clock where other work holds the processors.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from ggufcluster import Cluster, Llama, resources
from ggufcluster.adapters.ports import free_port
from ggufcluster.bindings.process_engine import process_engine
from ggufcluster.core.engine import PROGRAM_VARIABLES
from ggufcluster.core.toy import random_model
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.workflows.toy import publish_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPE = ToyShape(
    width=256, queries_per_group=2, expert_width=256, dense_width=512, selected_blocks=16
)
VOCABULARY_SIZE = 200_064
UBATCH = 256
MESSAGE = "Tell me about the weather. " * 20


@dataclass(frozen=True)
class Row:
    """One run: seconds to the first token, then to each further one; seconds of processors."""

    way: str
    round: int
    total: float
    first: float
    per_token: float
    cpu: float
    pieces: int
    load: float


def main() -> None:
    """Run the rounds, print the ratios, write everything."""
    asked = read_arguments()
    with tempfile.TemporaryDirectory(prefix="bench-bindings-") as folder:
        os.environ["XDG_STATE_HOME"] = folder
        path = asked.model or write_model(Path(folder) / "bench.gguf")
        leaks = count_leaks(path, asked)
        rows = run_rounds(path, asked) if asked.rounds else []
    found = ratios(rows)
    about = {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    result = about | vars(asked) | {"ratios": found, "leaks": leaks}
    result["rows"] = [asdict(row) for row in rows]
    if asked.output:
        asked.output.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
    print(json.dumps({"ratios": found, "leaks": leaks}, indent=1))


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a model instead of the random one")
    parser.add_argument("--workers", type=int, default=0, help="workers on this machine")
    parser.add_argument("--prompt", type=int, default=400, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of the answer")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--loads", type=int, default=0, help="loads to count leaks over")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def write_model(path: Path) -> Path:
    """Write the random model."""
    template = resources.templates() / "toy" / "minimax-m3-toy.jinja"
    text = template.read_text(encoding="utf-8")
    return publish_model(random_model(text, SHAPE, vocabulary_size=VOCABULARY_SIZE), path)


def places(asked: argparse.Namespace) -> list[str]:
    """Return the workers as both sides take them."""
    return [f"local:{asked.workers}"] if asked.workers else []


def open_llama(path: Path, asked: argparse.Namespace, **options: Any) -> Llama:
    """Load the model into this process."""
    few = {"n_threads": 1, "n_threads_batch": 1, "n_ctx": 2048, "n_ubatch": UBATCH}
    return Llama(str(path), workers=places(asked), **few | options)


def run_rounds(path: Path, asked: argparse.Namespace) -> list[Row]:
    """Bring up both sides and run every way once a round, after one round for nothing."""
    up = Cluster.up(
        places(asked),
        model=path,
        ctx=2048,
        ubatch=UBATCH,
        backend="cpu",
        port=free_port(),
        tool_check=False,
        extra=["--threads", "1", "--threads-batch", "1"],
    )
    with up as cluster, open_llama(path, asked) as model:
        ways = ways_of(cluster, model, asked) | bench_ways(path, asked)
        rows: list[Row] = []
        for number in range(-1, asked.rounds):
            texts = {}
            for way, work in ways.items():
                before = cpu_seconds(cluster, way)
                row, texts[way] = timed(way, number, work, tokens=asked.tokens)
                row = replace(row, cpu=cpu_seconds(cluster, way) - before)
                rows += [row] if number >= 0 else []
            require_equal(texts)
    return rows


def cpu_seconds(cluster: Cluster, way: str) -> float:
    """Return the seconds of processors that all who work for a way have taken so far."""
    ours = time.process_time()
    if way.startswith("llama"):
        return ours
    pid = (Path(cluster.record.head_run) / "pid").read_text(encoding="ascii").split()[0]
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return ours + (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def ways_of(
    cluster: Cluster, model: Llama, asked: argparse.Namespace
) -> dict[str, Callable[[], Iterator[str]]]:
    """Return each way as a stream of pieces of text."""
    prompt = [10 + number * number % 211 for number in range(asked.prompt)]
    messages = [{"role": "user", "content": MESSAGE}]
    web = httpx.Client(base_url=cluster.record.root, timeout=600)
    completion = {"prompt": prompt, "n_predict": asked.tokens}
    chat = {"messages": messages, "max_tokens": asked.tokens}

    def ours(start: Callable[[], Any], take: Callable[[Any], str]) -> Iterator[str]:
        model.reset()
        yield from map(take, start())

    return {
        "server completion": lambda: posted(web, "/completion", completion, take_content),
        "llama completion": lambda: ours(
            lambda: model.create_completion(
                prompt, max_tokens=asked.tokens, temperature=0, stream=True
            ),
            lambda piece: str(piece["choices"][0]["text"]),
        ),
        "server chat": lambda: posted(web, "/v1/chat/completions", chat, take_delta),
        "llama chat": lambda: ours(
            lambda: model.create_chat_completion(
                messages, max_tokens=asked.tokens, temperature=0, stream=True
            ),
            take_delta,
        ),
    }


def posted(
    web: httpx.Client, path: str, body: dict[str, Any], take: Callable[[Any], str]
) -> Iterator[str]:
    """Ask llama-server and yield the pieces of its answer."""
    more = {"stream": True, "temperature": 0, "cache_prompt": False}
    with web.stream("POST", path, json=body | more) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            data = line.removeprefix("data: ")
            if data and data != "[DONE]":
                yield take(json.loads(data))


def take_content(piece: Any) -> str:
    """Return the text of a piece of /completion."""
    return str(piece["content"])


def take_delta(piece: Any) -> str:
    """Return the text of a piece of a chat, thought or said."""
    delta = piece["choices"][0]["delta"] if piece["choices"] else {}
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "")


def bench_ways(path: Path, asked: argparse.Namespace) -> dict[str, Callable[[], Iterator[str]]]:
    """Return llama-bench as ways of its own, without a head; nothing with workers."""
    program = process_engine().engine.program("llama-bench")
    words = [str(program), "-m", str(path), "-t", "1", "-r", "1", "-fa", "1", "-ub", str(UBATCH)]
    words += ["-b", str(UBATCH), "-ctk", "q8_0", "-ctv", "q8_0", "-o", "json"]
    given = {**os.environ, **PROGRAM_VARIABLES}

    def run() -> Iterator[str]:
        prefill = ("-p", asked.prompt, "-n", 0)
        decode = ("-p", 0, "-n", asked.tokens, "-d", asked.prompt)
        for more in (prefill, decode):
            command = [*words, *map(str, more)]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=given)
            yield str(json.loads(done.stdout)[0]["avg_ns"])

    return {} if asked.workers else {"llama-bench": run}


def timed(
    way: str, number: int, work: Callable[[], Iterator[str]], *, tokens: int
) -> tuple[Row, str]:
    """Take one way's pieces by the clock."""
    begin = time.perf_counter()
    times, pieces = [], []
    for piece in work():
        if piece:
            times.append(time.perf_counter() - begin)
            pieces.append(piece)
    if way == "llama-bench":
        prompt, answer = (int(piece) / 1e9 for piece in pieces)
        return Row(
            way, number, prompt + answer, prompt, answer / tokens, 0.0, 0, os.getloadavg()[0]
        ), ""
    further = (times[-1] - times[0]) / max(1, len(times) - 1)
    row = Row(way, number, times[-1], times[0], further, 0.0, len(times), os.getloadavg()[0])
    return row, "".join(pieces)


def require_equal(texts: dict[str, str]) -> None:
    """Refuse to compare what was not the same work."""
    for kind in ("completion", "chat"):
        server, ours = texts[f"server {kind}"], texts[f"llama {kind}"]
        if server != ours:
            raise SystemExit(f"the texts of {kind} differ: {server[:200]!r}, {ours[:200]!r}")


def ratios(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return the medians of our times by the server's of the same round."""
    by = {(row.way, row.round): row for row in rows}
    found = {}
    for kind in ("completion", "chat") if rows else ():
        numbers = [row.round for row in rows if row.way == f"llama {kind}"]
        pairs = [(by[f"llama {kind}", n], by[f"server {kind}", n]) for n in numbers]
        found[kind] = {
            field: round(
                statistics.median(getattr(a, field) / getattr(b, field) for a, b in pairs), 3
            )
            for field in ("total", "first", "per_token", "cpu")
        }
    return found


def count_leaks(path: Path, asked: argparse.Namespace) -> list[dict[str, int]]:
    """Load and drop the model, and count after each load what the process holds."""
    counts = []
    for number in range(asked.loads):
        model = open_llama(path, asked, n_ctx=512)
        model.eval([1, 2, 3])
        if number % 2:
            model.close()
        del model
        counts.append(held())
    return counts


def held() -> dict[str, int]:
    """Count threads, open files, sockets, workers and kilobytes of memory of this process."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    files = [str(path.resolve()) for path in Path("/proc/self/fd").iterdir()]
    status = Path("/proc/self/status").read_text(encoding="ascii")
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return {
        "threads": threading.active_count(),
        "tasks": len(list(Path("/proc/self/task").iterdir())),
        "files": len(files),
        "sockets": sum("socket:[" in file for file in files),
        "children": len(children.split()),
        "runs": len(list(Path(os.environ["XDG_STATE_HOME"]).rglob("pid"))),
        "kilobytes": int(status.partition("VmRSS:")[2].split()[0]),
    }


if __name__ == "__main__":
    main()
