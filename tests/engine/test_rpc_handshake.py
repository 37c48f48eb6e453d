"""Real binaries: what head and worker do when the other side is not what they expect."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.engine

HELLO = 14
DEVICE_COUNT = 15
OTHER = "0123456789abcdef"
NO_CAPS = bytes(24)
VERSION = bytes([7, 0, 1, 0])  # the patch number counts our two operators
PATIENCE = 60.0  # seconds; only a hang reaches it
EXIT_USAGE, EXIT_NO_HOST, EXIT_UNAVAILABLE, EXIT_PROTOCOL = 2, 68, 69, 76


class Engine(Protocol):
    """What the `engine` fixture offers."""

    bin: Path
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Worker:
    """A running RPC server and the file that takes its output."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def said(self) -> str:
        """Return all output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_until_said(self, text: str) -> str:
        """Return the first complete line with `text`; fail when the worker ends or stays silent."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.process.poll() is None:
            lines = [line for line in self.said().split("\n")[:-1] if text in line]
            if lines:
                return lines[0]
            time.sleep(0.02)
        pytest.fail(f"the worker did not say {text!r} but:\n{self.said()}")


@pytest.fixture
def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running_worker(engine: Engine, port: int, log: Path, *, deadline: int = 30) -> Iterator[Worker]:
    """Run an RPC server that listens; end it afterwards."""
    environment = os.environ | {"GGUFCLUSTER_HANDSHAKE_SECONDS": str(deadline)}
    program = str(engine.bin / "ggml-rpc-server")
    command = [program, "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        worker = Worker(process, port, log)
        worker.wait_until_said("listening on")
        yield worker
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def worker(engine: Engine, free_port: int, tmp_path: Path) -> Iterator[Worker]:
    """Run a worker that gives a head ample time."""
    with running_worker(engine, free_port, tmp_path / "worker.log") as running:
        yield running


@pytest.fixture
def impatient_worker(engine: Engine, free_port: int, tmp_path: Path) -> Iterator[Worker]:
    """A worker that gives a head one second for its HELLO."""
    with running_worker(engine, free_port, tmp_path / "worker.log", deadline=1) as running:
        yield running


def dial(worker: Worker) -> socket.socket:
    """Connect to the worker."""
    return socket.create_connection(("127.0.0.1", worker.port), timeout=PATIENCE)


def request(command: int, payload: bytes) -> bytes:
    """Frame one RPC request: command, size, payload."""
    return struct.pack("<BQ", command, len(payload)) + payload


def receive(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes, fewer if the other side closes."""
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    return data


def is_closed(connection: socket.socket) -> bool:
    """Tell whether the other side closed, in order or by reset."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def hello(connection: socket.socket, fingerprint: str) -> bytes:
    """Send our HELLO and return the payload of the answer."""
    connection.sendall(request(HELLO, NO_CAPS + fingerprint.encode().ljust(16, b"\0")))
    (size,) = struct.unpack("<Q", receive(connection, 8))
    return receive(connection, size)


def device_count(connection: socket.socket) -> int:
    """Ask for the number of devices."""
    connection.sendall(request(DEVICE_COUNT, b""))
    size, count = struct.unpack("<QI", receive(connection, 12))
    assert size == 4
    return int(count)


def finish(*command: str | Path, deadline: int = 30) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    environment = os.environ | {"GGUFCLUSTER_HANDSHAKE_SECONDS": str(deadline)}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=PATIENCE, check=False
    )


def our_lines(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the error lines that the overlay printed.

    Each is one write, but llama-server's log has a thread that writes a line in pieces, and may
    have written the first of them.
    """
    return re.findall(r"ggufcluster: error: .*", result.stderr)


# --- the worker's side of HELLO ---


def test_worker_announces_that_it_listens(engine: Engine, worker: Worker) -> None:
    """The line that proves listening names address, port and fingerprint."""
    line = worker.wait_until_said("listening on")

    assert f"listening on 127.0.0.1:{worker.port}," in line
    assert line.endswith(f"fingerprint {engine.fingerprint}")


def test_worker_serves_a_head_with_its_fingerprint(engine: Engine, worker: Worker) -> None:
    """Equal fingerprints: version, capabilities and fingerprint come back, then service."""
    with dial(worker) as connection:
        answer = hello(connection, engine.fingerprint)

        assert answer == VERSION + NO_CAPS + engine.fingerprint.encode().ljust(16, b"\0")
        assert device_count(connection) == 1


def test_worker_refuses_a_head_with_another_fingerprint(engine: Engine, worker: Worker) -> None:
    """The worker tells its own fingerprint, closes, and names both in its log."""
    with dial(worker) as connection:
        answer = hello(connection, OTHER)

        assert answer[28:].rstrip(b"\0").decode() == engine.fingerprint
        assert is_closed(connection)
    line = worker.wait_until_said("refused")
    assert f"it runs engine {OTHER}" in line
    assert f"this worker runs engine {engine.fingerprint}" in line


def test_worker_refuses_the_hello_of_an_unpatched_head(engine: Engine, worker: Worker) -> None:
    """A HELLO of 24 bytes is closed without an answer, and the log says why."""
    with dial(worker) as connection:
        connection.sendall(request(HELLO, NO_CAPS))

        assert is_closed(connection)
    line = worker.wait_until_said("refused")
    assert "without ggufcluster's patches" in line
    assert f"this worker runs engine {engine.fingerprint}" in line


def test_silent_connection_does_not_block_the_worker(
    engine: Engine, impatient_worker: Worker
) -> None:
    """Who says nothing loses the worker after the deadline, and the next head is served."""
    with dial(impatient_worker) as silent, dial(impatient_worker) as connection:
        assert hello(connection, engine.fingerprint)
        assert device_count(connection) == 1
        assert is_closed(silent)


def test_half_a_hello_does_not_block_the_worker(engine: Engine, impatient_worker: Worker) -> None:
    """A head that stops in the middle of HELLO is dropped like a silent one."""
    with dial(impatient_worker) as slow, dial(impatient_worker) as connection:
        slow.sendall(request(HELLO, NO_CAPS)[:20])

        assert hello(connection, engine.fingerprint)


def test_deadline_ends_with_the_handshake(engine: Engine, impatient_worker: Worker) -> None:
    """After HELLO a head may be idle for longer than the deadline."""
    with dial(impatient_worker) as connection:
        hello(connection, engine.fingerprint)
        time.sleep(1.5)  # longer than the worker's deadline of one second

        assert device_count(connection) == 1


def test_worker_outlives_heads_that_vanish(engine: Engine, worker: Worker) -> None:
    """Writing to heads that reset the connection does not kill the worker."""
    for _ in range(5):
        with dial(worker) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(
                request(HELLO, NO_CAPS + engine.fingerprint.encode().ljust(16, b"\0"))
                + request(DEVICE_COUNT, b"") * 50
            )

    with dial(worker) as connection:
        assert hello(connection, engine.fingerprint)
        assert device_count(connection) == 1
    assert worker.process.poll() is None


# --- the head's side of HELLO ---


def answer_other(connection: socket.socket, _ours: str) -> None:
    """Answer as a worker of another source."""
    receive(connection, 49)
    connection.sendall(struct.pack("<Q", 44) + VERSION + NO_CAPS + OTHER.encode())


def answer_like_unpatched(connection: socket.socket, _ours: str) -> None:
    """Answer in the size of unpatched llama.cpp."""
    receive(connection, 49)
    connection.sendall(struct.pack("<Q", 28) + VERSION + NO_CAPS)


def close_at_once(connection: socket.socket, _ours: str) -> None:
    """Close with the HELLO half read, as unpatched llama.cpp does."""
    receive(connection, 9)


def say_nothing(connection: socket.socket, _ours: str) -> None:
    """Read until the head gives up."""
    receive(connection, 50)


def answer_old_protocol(connection: socket.socket, ours: str) -> None:
    """Answer with our fingerprint and protocol 6.0.1."""
    receive(connection, 49)
    answer = bytes([6, 0, 1, 0]) + NO_CAPS + ours.encode().ljust(16, b"\0")
    connection.sendall(struct.pack("<Q", 44) + answer)


def leave_after_hello(connection: socket.socket, ours: str) -> None:
    """Shake hands, then vanish on the first command."""
    receive(connection, 49)
    answer = VERSION + NO_CAPS + ours.encode().ljust(16, b"\0")
    connection.sendall(struct.pack("<Q", 44) + answer)
    receive(connection, 9)


@contextlib.contextmanager
def fake_worker(behaviour: Callable[[socket.socket, str], None], ours: str) -> Iterator[str]:
    """Serve one head as `behaviour` says; yield the endpoint."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE)
            behaviour(connection, ours)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def start_head(
    engine: Engine, endpoint: str, *, deadline: int = 30
) -> subprocess.CompletedProcess[str]:
    """Run a head that only lists the devices of one worker."""
    return finish(
        engine.bin / "llama-server", "--rpc", endpoint, "--list-devices", deadline=deadline
    )


@pytest.mark.parametrize(
    ("behaviour", "deadline", "code", "text"),
    [
        (answer_other, 30, EXIT_PROTOCOL, f"runs engine {OTHER}, this head runs engine {{ours}}"),
        (answer_like_unpatched, 30, EXIT_PROTOCOL, "does not speak ggufcluster's handshake"),
        (close_at_once, 30, EXIT_PROTOCOL, "does not speak ggufcluster's handshake"),
        (answer_old_protocol, 30, EXIT_PROTOCOL, "another version of the RPC protocol"),
        (say_nothing, 1, EXIT_UNAVAILABLE, "did not answer the handshake within 1 s"),
        (leave_after_hello, 30, EXIT_UNAVAILABLE, "lost worker"),
    ],
)
def test_head_ends_plainly_on_a_wrong_worker(
    engine: Engine,
    behaviour: Callable[[socket.socket, str], None],
    deadline: int,
    code: int,
    text: str,
) -> None:
    """The head names the worker and the cause in one line and exits by itself, unaborted."""
    with fake_worker(behaviour, engine.fingerprint) as endpoint:
        result = start_head(engine, endpoint, deadline=deadline)

    assert result.returncode == code
    (line,) = our_lines(result)
    assert f"worker {endpoint}" in line
    assert text.format(ours=engine.fingerprint) in line


@pytest.mark.parametrize(
    ("endpoint", "code", "text"),
    [
        ("no-such-host.invalid:50052", EXIT_NO_HOST, "cannot resolve worker host"),
        ("127.0.0.1", EXIT_USAGE, "'127.0.0.1' is no worker endpoint"),
        ("127.0.0.1:x", EXIT_USAGE, "'127.0.0.1:x' is no worker endpoint"),
    ],
)
def test_head_refuses_an_endpoint_it_cannot_use(
    engine: Engine, endpoint: str, code: int, text: str
) -> None:
    """A host that does not resolve, or no port, gives one line and a code of its own."""
    result = start_head(engine, endpoint)

    assert result.returncode == code
    (line,) = our_lines(result)
    assert text in line


def test_head_says_that_nothing_listens(engine: Engine, free_port: int) -> None:
    """A refused connection is named with its endpoint and cause."""
    result = start_head(engine, f"127.0.0.1:{free_port}")

    assert result.returncode == EXIT_UNAVAILABLE
    (line,) = our_lines(result)
    assert f"cannot connect to worker 127.0.0.1:{free_port}: Connection refused" in line


def test_head_bounds_the_wait_for_a_connection(engine: Engine) -> None:
    """A host that takes no more connections costs the deadline, not the kernel's minutes."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        for _ in range(3):  # fill the queue of connections not yet accepted
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        result = start_head(engine, f"127.0.0.1:{port}", deadline=1)

    assert result.returncode == EXIT_UNAVAILABLE
    (line,) = our_lines(result)
    assert f"cannot connect to worker 127.0.0.1:{port}: no answer within 1 s" in line


def test_head_lists_the_devices_of_its_worker(engine: Engine, worker: Worker) -> None:
    """Real head and real worker of one build agree, and the device appears."""
    result = start_head(engine, f"127.0.0.1:{worker.port}")

    assert result.returncode == 0
    assert "RPC0" in result.stdout + result.stderr
