"""Time downloads from a rate-limited server on the loopback interface: ours, curl, hf.

    python scripts/bench_download.py --size 2000 --rate 200 --connection-rate 25 --output raw.json

Sizes in MB (10^6 bytes), rates in MB/s. Every way runs once a round, in turn, against the same
server. `ours-start` downloads a small file: what a download costs whatever its size. Python's byte
code is kept between the runs, as an installed package has it. With `--tls` the bytes come over TLS,
with a certificate made for this run by openssl. With `--other`, the ways `other-start` and
`other-N` run another checkout, to compare with. `share` is the part of the limit that was reached
from the first request for bytes to the end of the client, verification included where it has one;
`sending_share`, in brackets, that to the last byte that the server sent.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.core.toy import random_model
from ggufcluster.testing import HubServer

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = "bench/model"
SMALL_REPOSITORY = "bench/small"
NAME = "m-F16.gguf"
STARTS = ("ours-start", "other-start")
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
    cpu_per_gb: float | None
    mb_per_s: float | None
    share: float | None
    sending_share: float | None
    load: float


def main() -> None:
    """Run the rounds and print a table."""
    arguments = read_arguments()
    folder = Path(tempfile.mkdtemp(prefix="bench-download-", dir=arguments.folder))
    try:
        rows = run_all(arguments, folder)
    finally:
        shutil.rmtree(folder)
    places = {"folder", "output", "serve", "other"}
    report = {
        "arguments": {k: v for k, v in vars(arguments).items() if k not in places},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.release()}",
        "load": os.getloadavg(),
        "rows": [asdict(row) for row in rows],
    }
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    for row in rows:
        print(line_of(row))


def line_of(row: Row) -> str:
    """Write a row for people."""
    speed = f"{row.mb_per_s:7.1f} MB/s" if row.mb_per_s else " " * 12
    share = f" {row.share:.1%} ({row.sending_share:.1%})" if row.share is not None else ""
    each = f" {row.cpu_per_gb:5.2f} s/GB" if row.cpu_per_gb else ""
    spent = f"(user {row.cpu_user:.2f}, system {row.cpu_system:.2f})"
    return f"{row.way:12} {speed}{share} wall {row.wall:6.2f} s  cpu{each} {spent}"


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=1000, help="MB")
    parser.add_argument("--rate", type=float, help="MB/s over all connections; unset: no limit")
    parser.add_argument("--connection-rate", type=float, help="MB/s over one connection")
    parser.add_argument("--rounds", type=int, default=3)
    ways = f"{STARTS[0]},ours-16,ours-1,curl-16,curl,curl+sha256,hf"
    parser.add_argument("--ways", default=ways)
    parser.add_argument("--tls", action="store_true", help="send the bytes over TLS")
    parser.add_argument("--folder", type=Path, help="where to download to")
    parser.add_argument("--output", type=Path, help="raw results as JSON")
    parser.add_argument("--other", type=Path, help="another checkout")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments)
        sys.exit()
    return arguments


def serve(arguments: argparse.Namespace) -> None:
    """Be the server: print the addresses, then for each line read when it began and ended."""
    limit = [rate * MB if rate else None for rate in (arguments.rate, arguments.connection_rate)]
    with HubServer(rate=limit[0], connection_rate=limit[1]) as server:
        if arguments.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate_of(arguments.serve.parent))
            server.use_tls(context)
        server.publish(REPOSITORY, {NAME: arguments.serve})
        server.publish(SMALL_REPOSITORY, {NAME: small_model()})
        print(json.dumps([server.root, server.address(REPOSITORY, NAME)]), flush=True)
        for _line in sys.stdin:
            times = [asked.time for asked in server.data_requests()]
            print(json.dumps([min(times, default=0.0), server.sent_at]), flush=True)
            server.asked.clear()


def small_model() -> bytes:
    """Make a model that is looked at and found right before it is downloaded."""
    return random_model("{{ messages }}").to_bytes()


def certificate_of(folder: Path) -> tuple[Path, Path]:
    """Return where the certificate of a run lies, and its key."""
    return folder / "certificate.pem", folder / "key.pem"


def make_certificate(folder: Path) -> None:
    """Make a certificate for the loopback address."""
    certificate, key = certificate_of(folder)
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-out", str(certificate), "-keyout", str(key)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def write_source(source: Path, size: int) -> None:
    """Write the file to be downloaded: a small model, then bytes that cannot be packed."""
    with source.open("wb") as file:
        left = size - file.write(small_model())
        while left:
            left -= file.write(os.urandom(min(left, MB)))
        # Else writing it back would go on while the first client is timed.
        os.fsync(file.fileno())


def run_all(arguments: argparse.Namespace, folder: Path) -> list[Row]:
    """Start the server in a process of its own and run every way in every round."""
    source = folder / "source"
    write_source(source, arguments.size * MB)
    command = [sys.executable, __file__, "--serve", str(source)]
    if arguments.tls:
        make_certificate(folder)
        command.append("--tls")
    for option in ("rate", "connection_rate"):
        if value := getattr(arguments, option):
            command += [f"--{option.replace('_', '-')}", str(value)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        root, address = json.loads(server.stdout.readline())

        def sending() -> list[float]:
            print("?", file=server.stdin, flush=True)
            begin_and_end: list[float] = json.loads(server.stdout.readline())  # type: ignore[union-attr]
            return begin_and_end

        # The first run writes byte code.
        for way in STARTS[: 2 if arguments.other else 1]:
            measure(way, -1, arguments, folder, root, address, sending)
        rows = [
            measure(way, number, arguments, folder, root, address, sending)
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
    sending: Callable[[], list[float]],
) -> Row:
    """Run one client and check what it left."""
    target = folder / "out"
    target.mkdir()
    size = len(small_model()) if way in STARTS else arguments.size * MB
    command = command_of(way, address, target, size=size)
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    if way.startswith("other-"):
        kept["PYTHONPATH"] = str(arguments.other)
    if arguments.tls:
        kept["SSL_CERT_FILE"] = str(certificate_of(folder)[0])
    surroundings = kept | {
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
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
    assert got == size, (way, got)
    shutil.rmtree(target)
    first, last = sending()
    transfer, limit = end - first, arguments.rate
    speed = None if way in STARTS else arguments.size / transfer
    print(f"{way} round {number}: {end - begin:.1f} s", file=sys.stderr, flush=True)
    return Row(
        way=way,
        round=number,
        wall=end - begin,
        transfer=transfer,
        cpu_user=usage.ru_utime,
        cpu_system=usage.ru_stime,
        cpu_per_gb=(usage.ru_utime + usage.ru_stime) / (arguments.size / 1000) if speed else None,
        mb_per_s=speed,
        share=speed / limit if speed and limit else None,
        sending_share=arguments.size / (last - first) / limit if speed and limit else None,
        load=os.getloadavg()[0],
    )


def command_of(way: str, address: str, target: Path, *, size: int) -> list[str]:
    """Return the command line of a client; curl-16 is sixteen of them, their parts not joined."""
    out = str(target / NAME)
    if way.startswith(("ours-", "other-")):
        repository = SMALL_REPOSITORY if way in STARTS else REPOSITORY
        parts = "16" if way in STARTS else way.partition("-")[2]
        options = ["--dir", str(target), "--parts", parts, "--quiet"]
        return [sys.executable, "-m", "ggufcluster", "download", repository, *options]
    # The certificate is a CA of its own here; without TLS curl does not look at it.
    curl = f"curl -sS --noproxy '*' --cacert {certificate_of(target.parent)[0]}"
    if way == "curl":
        return [*shlex.split(curl), "-o", out, address]
    if way == "curl+sha256":
        script = f'{curl} -o "$1" "$2" && sha256sum "$1"'
        return ["sh", "-c", script, "sh", out, address]
    if way == "curl-16":
        cuts = [size * n // 16 for n in range(17)]
        parts = [
            f'{curl} -r {start}-{end - 1} -o "$1.{start}" "$2" &' for start, end in pairwise(cuts)
        ]
        return ["sh", "-c", "\n".join([*parts, "wait"]), "sh", out, address]
    hf = str(Path(sys.executable).with_name("hf"))
    return [hf, "download", REPOSITORY, NAME, "--local-dir", str(target)]


if __name__ == "__main__":
    main()
