"""Time downloads from a rate-limited server on the loopback interface: ours, curl, hf.

    python scripts/bench_download.py --size 2000 --rate 200 --connection-rate 25 --output raw.json

Sizes in MB (10^6 bytes), rates in MB/s. Every way runs once a round, in turn, against the same
server. `share` is the part of the limit that was reached from the first byte asked for to the end
of the client, verification included where it has one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.testing import HubServer

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = "bench/model"
NAME = "m-Q8_0.gguf"
MB = 1_000_000


@dataclass(frozen=True)
class Row:
    """One run: seconds, processor seconds per 10^9 bytes, and the share of the limit."""

    way: str
    round: int
    wall: float
    transfer: float
    cpu_user: float
    cpu_system: float
    cpu_per_gb: float
    mb_per_s: float
    share: float | None


def main() -> None:
    """Run the rounds and print a table."""
    arguments = read_arguments()
    folder = Path(tempfile.mkdtemp(prefix="bench-download-", dir=arguments.folder))
    try:
        rows = run_all(arguments, folder)
    finally:
        shutil.rmtree(folder)
    report = {
        "arguments": {k: str(v) if isinstance(v, Path) else v for k, v in vars(arguments).items()},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.release()}",
        "load": os.getloadavg(),
        "rows": [asdict(row) for row in rows],
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    for row in rows:
        share = f"{row.share:6.1%}" if row.share is not None else "      "
        print(
            f"{row.way:12} {row.mb_per_s:7.1f} MB/s {share} wall {row.wall:6.2f} s"
            f"  cpu {row.cpu_per_gb:5.2f} s/GB"
            f" (user {row.cpu_user:.2f}, system {row.cpu_system:.2f})"
        )


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=1000, help="MB")
    parser.add_argument("--rate", type=float, help="MB/s over all connections; unset: no limit")
    parser.add_argument("--connection-rate", type=float, help="MB/s over one connection")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", default="ours-16,ours-1,curl-16,curl,curl+sha256,hf")
    parser.add_argument("--folder", type=Path, help="where to download to")
    parser.add_argument("--output", type=Path, help="raw results as JSON")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
        sys.exit()
    return arguments


def serve(arguments: argparse.Namespace) -> None:
    """Be the server: print the addresses, then the time of the first request for each line read."""
    limit = [rate * MB if rate else None for rate in (arguments.rate, arguments.connection_rate)]
    with HubServer(rate=limit[0], connection_rate=limit[1]) as server:
        server.publish(REPOSITORY, {NAME: arguments.serve})
        print(json.dumps([server.root, server.address(REPOSITORY, NAME)]), flush=True)
        for _line in sys.stdin:
            times = [asked.time for asked in server.data_requests()]
            print(json.dumps(min(times, default=0.0)), flush=True)
            server.asked.clear()


def run_all(arguments: argparse.Namespace, folder: Path) -> list[Row]:
    """Start the server in a process of its own and run every way in every round."""
    source = folder / "source"
    with source.open("wb") as file:
        for _ in range(arguments.size):
            file.write(os.urandom(MB))
    command = [sys.executable, __file__, "--serve", str(source)]
    for option in ("rate", "connection_rate"):
        if value := getattr(arguments, option):
            command += [f"--{option.replace('_', '-')}", str(value)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        root, address = json.loads(server.stdout.readline())

        def first_request() -> float:
            print("?", file=server.stdin, flush=True)
            return float(json.loads(server.stdout.readline()))  # type: ignore[union-attr]

        rows = [
            measure(way, number, arguments, folder, root, address, first_request)
            for number in range(arguments.rounds)
            for way in arguments.ways.split(",")
        ]
        server.stdin.close()
    return rows


def measure(
    way: str,
    number: int,
    arguments: argparse.Namespace,
    folder: Path,
    root: str,
    address: str,
    first_request: Callable[[], float],
) -> Row:
    """Run one client and check what it left."""
    target = folder / "out"
    target.mkdir()
    command = command_of(way, address, target, size=arguments.size * MB)
    surroundings = os.environ | {
        "HF_ENDPOINT": root,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(target / "home"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    begin = time.time()
    process = subprocess.Popen(
        command, env=surroundings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    end = time.time()
    assert process.returncode == 0, (way, process.returncode)
    got = sum(path.stat().st_size for path in target.glob(f"{NAME}*"))
    assert got == arguments.size * MB, (way, got)
    shutil.rmtree(target)
    transfer = end - first_request()
    speed = arguments.size / transfer
    print(f"{way} round {number}: {speed:.1f} MB/s", file=sys.stderr, flush=True)
    return Row(
        way=way,
        round=number,
        wall=end - begin,
        transfer=transfer,
        cpu_user=usage.ru_utime,
        cpu_system=usage.ru_stime,
        cpu_per_gb=(usage.ru_utime + usage.ru_stime) / (arguments.size / 1000),
        mb_per_s=speed,
        share=speed / arguments.rate if arguments.rate else None,
    )


def command_of(way: str, address: str, target: Path, *, size: int) -> list[str]:
    """Return the command line of a client; curl-16 is sixteen of them, their parts not joined."""
    out = str(target / NAME)
    if way.startswith("ours-"):
        options = ["--dir", str(target), "--parts", way.removeprefix("ours-"), "--quiet"]
        return [sys.executable, "-m", "ggufcluster", "download", REPOSITORY, *options]
    if way == "curl":
        return ["curl", "-sS", "--noproxy", "*", "-o", out, address]
    if way == "curl+sha256":
        script = 'curl -sS --noproxy "*" -o "$1" "$2" && sha256sum "$1"'
        return ["sh", "-c", script, "sh", out, address]
    if way == "curl-16":
        cuts = [size * n // 16 for n in range(17)]
        parts = [
            f'curl -sS --noproxy "*" -r {start}-{end - 1} -o "$1.{start}" "$2" &'
            for start, end in pairwise(cuts)
        ]
        return ["sh", "-c", "\n".join([*parts, "wait"]), "sh", out, address]
    hf = str(Path(sys.executable).with_name("hf"))
    return [hf, "download", REPOSITORY, NAME, "--local-dir", str(target)]


if __name__ == "__main__":
    main()
