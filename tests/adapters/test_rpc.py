"""Speaking RPC to a worker: a small stand-in answers on a loopback socket."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.rpc import DeviceMemory, RpcClient, measure_link, probe_worker
from ggufcluster.core import rpc_wire
from ggufcluster.errors import WorkerFingerprintError, WorkerNotReadyError
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Serve = Callable[[socket.socket], None]

OURS = "0123456789abcdef"
GIB = 1 << 30


@contextmanager
def worker(serve: Serve) -> Iterator[str]:
    """Serve connections in a thread until the end; give the endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, serve))
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _accept(listener: socket.socket, serve: Serve) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            try:
                serve(connection)
            except (EOFError, ConnectionError):
                continue


def receive(connection: socket.socket, size: int) -> bytes:
    """Read exactly so many bytes."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(min(size - len(data), 1 << 20))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def reply(connection: socket.socket, payload: bytes) -> None:
    """Send one framed reply."""
    connection.sendall(struct.pack("<Q", len(payload)) + payload)


def shake(connection: socket.socket, fingerprint: str = OURS) -> None:
    """Read HELLO, check its form, and answer as a patched worker does."""
    assert receive(connection, 9) == struct.pack("<BQ", rpc_wire.HELLO, 40)
    receive(connection, 40)
    reply(connection, bytes([3, 6, 1, 0]) + bytes(24) + fingerprint.encode().ljust(16, b"\0"))


class Engine:
    """A worker with two devices that keeps what it is sent."""

    def __init__(self, *, pointer: int = 77) -> None:
        self.pointer = pointer
        self.allocated: list[int] = []
        self.stored: list[int] = []

    def serve(self, connection: socket.socket) -> None:
        """Answer until the head leaves."""
        shake(connection)
        while True:
            code, size = struct.unpack("<BQ", receive(connection, 9))
            payload = receive(connection, size)
            answer = self.answer(code, payload)
            if answer is not None:
                reply(connection, answer)

    def answer(self, code: int, payload: bytes) -> bytes | None:
        """Return the reply to one command; SET_TENSOR has none."""
        if code == rpc_wire.DEVICE_COUNT:
            return struct.pack("<I", 2)
        if code == rpc_wire.GET_DEVICE_MEMORY:
            (device,) = struct.unpack("<I", payload)
            return struct.pack("<QQ", (device + 1) * GIB, 10 * GIB)
        if code == rpc_wire.ALLOC_BUFFER:
            self.allocated.append(struct.unpack("<IQ", payload)[1])
            return struct.pack("<QQ", self.pointer, self.allocated[-1])
        if code == rpc_wire.BUFFER_GET_BASE:
            assert struct.unpack("<Q", payload) == (self.pointer,)
            return struct.pack("<Q", 0x1000)
        assert code == rpc_wire.SET_TENSOR
        overhead = len(rpc_wire.set_tensor_head(0, 0, 0)) - 9
        self.stored.append(len(payload) - overhead)
        return None


def test_a_good_worker_reports_its_memory() -> None:
    """The handshake gives the version, and each device its free and total memory."""
    with worker(Engine().serve) as endpoint:
        report = probe_worker(endpoint, OURS, timeout=PATIENCE)
    assert report.version == (3, 6, 1)
    assert report.devices == (DeviceMemory(GIB, 10 * GIB), DeviceMemory(2 * GIB, 10 * GIB))


def test_a_worker_serves_one_head_after_the_other() -> None:
    """Every probe closes its connection, so that the next one is served."""
    with worker(Engine().serve) as endpoint:
        reports = {probe_worker(endpoint, OURS, timeout=PATIENCE) for _ in range(3)}
    assert len(reports) == 1


def test_the_link_is_timed_with_what_was_allocated() -> None:
    """Exactly the bytes that were asked for travel, at first one MiB, and the figures are real."""
    engine = Engine()
    with worker(engine.serve) as endpoint:
        speed = measure_link(endpoint, OURS, timeout=PATIENCE)
    assert engine.stored == engine.allocated
    assert engine.stored[0] == 1 << 20
    assert (1 << 20) <= engine.stored[1] <= 64 << 20
    assert 0 < speed.round_trip < PATIENCE
    assert speed.rate > 0


def test_rate_and_round_trip_follow_the_clock() -> None:
    """A clock that moves one second a look gives a trip of one and a rate of all bytes a second."""
    ticks = iter(range(1000))
    with worker(Engine().serve) as endpoint, RpcClient(endpoint, OURS, timeout=PATIENCE) as client:
        speed = client.link_speed(size=3_000_000, clock=lambda: float(next(ticks)))
    assert (speed.round_trip, speed.rate) == (1.0, 3_000_000.0)


def test_a_worker_without_memory_is_not_ready() -> None:
    """A buffer that cannot be allocated is named with its size."""
    with (
        worker(Engine(pointer=0).serve) as endpoint,
        pytest.raises(WorkerNotReadyError, match="cannot allocate 1048576 bytes"),
    ):
        measure_link(endpoint, OURS, timeout=PATIENCE)


def test_another_fingerprint_is_named() -> None:
    """Both fingerprints are in the error."""
    with (
        worker(lambda connection: shake(connection, "f" * 16)) as endpoint,
        pytest.raises(WorkerFingerprintError) as caught,
    ):
        probe_worker(endpoint, OURS, timeout=PATIENCE)
    assert (caught.value.theirs, caught.value.ours) == ("f" * 16, OURS)
    assert caught.value.worker == endpoint


def test_an_unpatched_worker_is_called_that() -> None:
    """A reply of the upstream size is a worker without our patches."""

    def serve(connection: socket.socket) -> None:
        receive(connection, 49)
        reply(connection, bytes([3, 6, 1, 0]) + bytes(24))

    with (
        worker(serve) as endpoint,
        pytest.raises(WorkerFingerprintError, match="without ggufcluster's patches"),
    ):
        probe_worker(endpoint, OURS, timeout=PATIENCE)


def _silent(connection: socket.socket) -> None:
    receive(connection, 49)
    connection.recv(1)  # until the head gives up


def _closing(connection: socket.socket) -> None:
    receive(connection, 49)


def _closing_midway(connection: socket.socket) -> None:
    receive(connection, 49)
    connection.sendall(struct.pack("<Q", 44) + bytes(10))


def _garbage(connection: socket.socket) -> None:
    receive(connection, 49)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def _huge(connection: socket.socket) -> None:
    receive(connection, 49)
    connection.sendall(struct.pack("<Q", 1 << 62) + bytes(64))


def _tiny(connection: socket.socket) -> None:
    receive(connection, 49)
    reply(connection, b"\x03")


def _odd_count(connection: socket.socket) -> None:
    shake(connection)
    receive(connection, 9)
    reply(connection, bytes(8))


@pytest.mark.parametrize(
    ("serve", "reason"),
    [
        (_closing, "closed the connection"),
        (_closing_midway, "closed the connection"),
        (_garbage, "does not speak"),
        (_huge, "does not speak"),
        (_tiny, "does not speak"),
        (_odd_count, "8 bytes instead of 4"),
    ],
)
def test_a_worker_that_answers_oddly_is_not_ready(serve: Serve, reason: str) -> None:
    """Whatever comes instead of an answer, the error names the worker and what was odd."""
    with worker(serve) as endpoint, pytest.raises(WorkerNotReadyError) as caught:
        probe_worker(endpoint, OURS, timeout=PATIENCE)
    assert reason in caught.value.reason
    assert caught.value.worker == endpoint


def test_a_silent_worker_is_given_up() -> None:
    """A worker that takes the greeting and says nothing is not waited for beyond the timeout."""
    with (
        worker(_silent) as endpoint,
        pytest.raises(WorkerNotReadyError, match="no answer in time"),
    ):
        probe_worker(endpoint, OURS, timeout=0.2)


def test_nobody_there_is_not_ready() -> None:
    """A refused connection is told in the system's words."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(WorkerNotReadyError, match="connection refused"):
        probe_worker(f"127.0.0.1:{port}", OURS, timeout=PATIENCE)
