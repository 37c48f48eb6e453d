"""Real binaries: which engine they are, and how the RPC server takes bad options."""

from __future__ import annotations

import socket
import subprocess
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine

EXIT_USAGE, EXIT_NO_HOST, EXIT_CANNOT_BIND = 2, 68, 71


class Engine(Protocol):
    """What the `engine` fixture offers."""

    bin: Path
    fingerprint: str


def finish(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; only a hang reaches the limit."""
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def our_lines(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the error lines that the overlay printed."""
    return [line for line in result.stderr.splitlines() if line.startswith("ggufcluster: error: ")]


@pytest.mark.parametrize(
    "program",
    ["ggml-rpc-server", "llama-server", "llama-bench", "llama-perplexity", "llama-gguf-split"],
)
def test_version_output_names_the_fingerprint(engine: Engine, program: str) -> None:
    """--version prints one ggufcluster line that ends in the fingerprint, and succeeds."""
    result = finish(engine.bin / program, "--version")

    lines = [line for line in result.stderr.splitlines() if line.startswith("ggufcluster: build ")]
    assert result.returncode == 0
    assert len(lines) == 1
    assert lines[0].endswith(f", fingerprint {engine.fingerprint}")


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--nonsense"], EXIT_USAGE, "unknown option '--nonsense'"),
        (["-p", "5x"], EXIT_USAGE, "-p takes a whole number from 1 to 65535, not '5x'"),
        (["--port", "0"], EXIT_USAGE, "--port takes a whole number from 1 to 65535, not '0'"),
        (["-p", "99999999999999999999"], EXIT_USAGE, "-p takes a whole number"),
        (["-t", "many"], EXIT_USAGE, "-t takes a whole number"),
        (["-H"], EXIT_USAGE, "option '-H' needs a value"),
        (["-H", "no-such-host.invalid"], EXIT_NO_HOST, "host 'no-such-host.invalid'"),
        (["-H", "::1"], EXIT_NO_HOST, "host '::1': no IPv4 address"),
        (["-H", ""], EXIT_NO_HOST, "host '': no IPv4 address"),
        (["-H", "203.0.113.1"], EXIT_CANNOT_BIND, "no interface of this machine"),
    ],
)
def test_worker_refuses_bad_options(
    engine: Engine, options: list[str], code: int, text: str
) -> None:
    """Each bad option ends the RPC server with its own code and one line."""
    result = finish(engine.bin / "ggml-rpc-server", *options)

    assert result.returncode == code
    (line,) = our_lines(result)
    assert text in line


def test_worker_refuses_an_unknown_device(engine: Engine) -> None:
    """A device that is not there ends the RPC server and is named."""
    result = finish(engine.bin / "ggml-rpc-server", "-d", "CUDA77")

    assert result.returncode == EXIT_USAGE
    assert "unknown device: CUDA77" in result.stderr


def test_worker_says_that_its_port_is_taken(engine: Engine) -> None:
    """A taken port gives its own exit code and a line with address, port and cause."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        result = finish(engine.bin / "ggml-rpc-server", "-p", str(port))

    assert result.returncode == EXIT_CANNOT_BIND
    (line,) = our_lines(result)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in line
    assert "listening on" not in result.stdout
