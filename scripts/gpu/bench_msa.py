"""Time sparse attention on one GPU, everything in one run: ours, the floors, llama.cpp, vLLM.

Run from the root of the checkout:

    python3 -m scripts.gpu.bench_msa OUT_FOLDER [--arch 90a] [--max-context 262144]
        [--bin ENGINE_BIN --model MODEL.gguf [--generic-depth 32768]] [--peer PEER_BENCH.py]

A layer of ours is timed by msa_harness, compiled here. With an engine for this GPU and the model of
true_shape_model.py, llama-bench times whole models, and by difference what a sparse layer costs on
llama.cpp's generic path and on its dense flash attention: the three runs differ in nothing else,
except that the dense one has no index branch, so that its column is a little low. With vLLM's two
kernel files beside PEER_BENCH.py their times are taken last.

Prints a table; writes kernels.jsonl, llama-bench.jsonl, peer.json and table.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OVERLAY: Final = Path(__file__).parents[2] / "vendor" / "llama.cpp" / "overlay" / "ggml" / "src"
SPARSE_LAYERS: Final = 4
UBATCH: Final = 2048
DEPTHS: Final = (0, 8192, 32_768, 131_072)
# What an H200 does, by a product of 8192 x 8192 bf16 matrices and a copy in memory; both are
# printed by PEER_BENCH.py for the card at hand.
TENSOR_FLOPS: Final = 790e12
MEMORY_BYTES: Final = 4.27e12
GROUPS, HEADS, DIM, KEYS = 4, 64, 128, 2048
ROW_BYTES: Final = {"f16": 256, "q8_0": 136, "q4_0": 72}


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which llama-bench runs the model: a name and what its environment says."""

    name: str
    environment: Mapping[str, str]


# The leading layers stay on llama.cpp's attention in all of those that are subtracted.
WAYS: Final = (
    Way("native", {"GGUFCLUSTER_MSA": "native"}),
    Way("sparse", {"GGUFCLUSTER_MSA": "native", "GGUFCLUSTER_MSA_LEADING": "generic"}),
    Way("dense", {"GGUFCLUSTER_MSA": "dense"}),
    Way("generic", {"GGUFCLUSTER_MSA": "generic"}),
)


def floor_us(tokens: int, keys: int, index: str, kind: str) -> float:
    """Bound a sparse layer from below: operations of a prefill, bytes of a few tokens.

    Source: the cost model of MiniMax Sparse Attention; scores of every visible key for each group,
    and attention of all heads to 2,048 keys.
    """
    visible = keys - (tokens - 1) / 2
    scores = tokens * visible * GROUPS * DIM * 2
    attention = tokens * min(visible, KEYS) * HEADS * DIM * 4
    rows = keys * ROW_BYTES[index] + tokens * GROUPS * min(keys, KEYS) * 2 * ROW_BYTES[kind]
    bytes_us = 1e6 * rows / MEMORY_BYTES if tokens < UBATCH else 0.0
    return max(1e6 * (scores + attention) / TENSOR_FLOPS, bytes_us)


def records(text: str) -> Iterator[dict[str, Any]]:
    """Read one JSON object a line."""
    yield from (json.loads(line) for line in text.splitlines() if line.startswith("{"))


def kernels(out: Path, arch: str, max_context: int) -> list[dict[str, Any]]:
    """Compile the harness and time a layer at every size."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "msa_harness"
        own = sorted(OVERLAY.glob("ggml-cuda/msa-*.cu"))
        sources = [Path(__file__).with_name("msa_harness.cu"), *own]
        flags = [
            "-std=c++17",
            "-O3",
            f"-gencode=arch=compute_{arch},code=sm_{arch}",
            f"-I{OVERLAY}",
        ]
        subprocess.run(["nvcc", *flags, "-o", program, *sources], check=True)
        words = [str(program), "time", str(max_context)]
        text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    (out / "kernels.jsonl").write_text(text)
    return list(records(text))


def bench_words(bin_folder: Path, model: Path, kind: str, depths: list[int]) -> list[str]:
    """Write the llama-bench command for one KV type."""
    words = [str(bin_folder / "llama-bench"), "-m", str(model), "-ngl", "99", "-fa", "1"]
    words += ["-b", str(UBATCH), "-ub", str(UBATCH), "-p", str(UBATCH), "-n", "32", "-r", "2"]
    return [*words, "-ctk", kind, "-ctv", kind, "-d", ",".join(map(str, depths)), "-o", "jsonl"]


def whole_models(
    out: Path, bin_folder: Path, model: Path, *, generic_depth: int
) -> list[dict[str, Any]]:
    """Run llama-bench on every path, KV type and depth; a record has `path` beside its fields."""
    found: list[dict[str, Any]] = []
    for kind in ("q8_0", "f16"):
        for way in WAYS:
            limit = generic_depth if way.name == "generic" else max(DEPTHS)
            words = bench_words(bin_folder, model, kind, [one for one in DEPTHS if one <= limit])
            environment = {**os.environ, **way.environment, "LD_LIBRARY_PATH": str(bin_folder)}
            done = subprocess.run(
                words, check=True, capture_output=True, text=True, env=environment
            )
            found += [{"path": way.name, **record} for record in records(done.stdout)]
    (out / "llama-bench.jsonl").write_text("".join(json.dumps(record) + "\n" for record in found))
    return found


def peer(out: Path, script: Path) -> list[dict[str, Any]]:
    """Time vLLM's kernels in 16 bits; the script writes peer.json into the folder named OUT."""
    environment = {**os.environ, "PEER_PARTS": "sparse:fp16", "OUT": str(out.absolute())}
    subprocess.run(["python3", script.name], cwd=script.parent, check=True, env=environment)
    rows: list[dict[str, Any]] = json.loads((out / "peer.json").read_text())["rows"]
    return rows


def step_us(
    models: list[dict[str, Any]], path: str, kind: str, tokens: int, keys: int
) -> float | None:
    """Find the time of one ubatch, or of one token, of a whole model."""
    for record in models:
        here = (record["path"], record["type_k"], record["n_depth"]) == (path, kind, keys)
        if here and bool(record["n_prompt"]) == (tokens == UBATCH):
            return 1e6 * tokens / float(record["avg_ts"])
    return None


def layer_us(models: list[dict[str, Any]], path: str, row: Mapping[str, Any]) -> float | None:
    """Give what a sparse layer costs on another path: ours and the difference of whole models."""
    if row["T"] not in (1, UBATCH) or row["index"] != "f16":
        return None
    own = step_us(models, "sparse", row["kv"], row["T"], row["n"])
    other = step_us(models, path, row["kv"], row["T"], row["n"])
    if own is None or other is None:
        return None
    return float(row["total_us"]) + (other - own) / SPARSE_LAYERS


def peer_us(rows: list[dict[str, Any]], row: Mapping[str, Any]) -> float | None:
    """Find vLLM's time for the same shape."""
    for one in rows:
        if (one["T"], one["n"], one["pat"]) == (row["T"], row["n"], row["pattern"]):
            return float(one["total"])
    return None


def table(
    layers: list[dict[str, Any]], models: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Put all columns of a layer side by side, microseconds."""
    return [
        {
            **row,
            "floor_us": round(floor_us(row["T"], row["n"], row["index"], row["kv"]), 2),
            "generic_us": layer_us(models, "generic", row),
            "dense_llama_us": layer_us(models, "dense", row),
            "vllm_us": peer_us(rows, row) if row["kv"] == "f16" else None,
        }
        for row in layers
    ]


def show(lines: list[dict[str, Any]]) -> None:
    """Print the table within 80 columns."""
    columns = {
        "index": "indexer_us",
        "attend": "attention_us",
        "total": "total_us",
        "floor": "floor_us",
        "generic": "generic_us",
        "dense": "dense_llama_us",
        "vllm": "vllm_us",
    }
    print(f"{'T':>4} {'n':>7} {'':4} {'kv':4}" + "".join(f"{name:>8}" for name in columns))
    for line in lines:
        cells = [line[key] for key in columns.values()]
        texts = [f"{cell:8.1f}" if cell is not None else f"{'-':>8}" for cell in cells]
        print(f"{line['T']:4} {line['n']:7} {line['pattern']} {line['kv']:4}" + "".join(texts))


def main() -> None:
    """Run what the command line gives the means for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch", default="90a")
    parser.add_argument("--max-context", type=int, default=262_144)
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--generic-depth", type=int, default=32_768)
    parser.add_argument("--peer", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    layers = kernels(options.out, options.arch, options.max_context)
    models: list[dict[str, Any]] = []
    if options.bin:
        depth = options.generic_depth
        models = whole_models(options.out, options.bin, options.model, generic_depth=depth)
    rows = peer(options.out, options.peer) if options.peer else []
    lines = table(layers, models, rows)
    (options.out / "table.json").write_text(json.dumps(lines, indent=1) + "\n")
    show(lines)


if __name__ == "__main__":
    main()
