"""Real RPC servers on this machine, for tests of the real engine."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

START_SECONDS = 60


class Engine(Protocol):
    """What these tests need of the `engine` fixture."""

    bin: Path


def free_port() -> int:
    """Find a port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server and end it, and only it, at the end."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def is_listening(port: int) -> bool:
    """Connect and close at once; an RPC server's log is buffered and says nothing yet."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def rpc_worker(engine: Engine, folder: Path) -> Iterator[str]:
    """Run an RPC server on this machine until the block ends; gives its endpoint."""
    port = free_port()
    log = folder / f"worker-{port}.log"
    command = [str(engine.bin / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port)]
    with running(command, log) as process:
        deadline = time.monotonic() + START_SECONDS
        while not is_listening(port):
            alive = process.poll() is None and time.monotonic() < deadline
            assert alive, log.read_text(errors="replace")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
