"""Speak RPC to an idle worker: is it ours, what memory has it, how good is the link.

A worker serves one client at a time, and a client that leaves in the middle of the handshake can
harm it. So this is only used on a worker that we have just started, never on a busy one.
"""

from __future__ import annotations

import socket
import statistics
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from ggufcluster.core import rpc_wire
from ggufcluster.errors import WorkerFingerprintError, WorkerNotReadyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_REPLY_LIMIT = 4096
_ROUND_TRIPS = 15
_CHUNK = 1 << 20
_LINK_BYTES = 64 << 20
NO_ANSWER = "gave no answer in time"
_STRANGE = "does not speak llama.cpp's RPC"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of one device of a worker, in bytes."""

    free: int
    total: int


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker answered: protocol version and the memory of each of its devices."""

    version: tuple[int, int, int]
    devices: tuple[DeviceMemory, ...]


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """How good the link to a worker is.

    Attributes:
        round_trip: Median time of one small request, in seconds.
        rate: Bytes per second from the head to the worker over one TCP connection.
    """

    round_trip: float
    rate: float


class RpcClient:
    """One connection to one worker; use it as a context manager."""

    def __init__(self, endpoint: str, fingerprint: str, *, timeout: float) -> None:
        """Connect and complete the handshake.

        Raises:
            WorkerFingerprintError: The worker runs another engine.
            WorkerNotReadyError: No connection, or no proper answer within `timeout` seconds.
        """
        self._endpoint = endpoint
        host, _, port = endpoint.rpartition(":")
        try:
            self._socket = socket.create_connection((host, int(port)), timeout)
        except OSError as error:
            raise WorkerNotReadyError(endpoint, reason=_words(error)) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.version = self._shake_hands(fingerprint)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()

    def devices(self) -> tuple[DeviceMemory, ...]:
        """Ask for free and total memory of every device."""
        (count,) = struct.unpack("<I", self._ask(rpc_wire.request(rpc_wire.DEVICE_COUNT), 4))
        answers = (self._ask(rpc_wire.memory_request(device), 16) for device in range(count))
        return tuple(DeviceMemory(*struct.unpack("<QQ", answer)) for answer in answers)

    def link_speed(self, *, size: int, clock: Callable[[], float] = time.monotonic) -> LinkSpeed:
        """Time small requests, then one transfer of `size` bytes into a buffer of the worker."""
        trips = []
        for _ in range(_ROUND_TRIPS):
            start = clock()
            self._ask(rpc_wire.request(rpc_wire.DEVICE_COUNT), 4)
            trips.append(clock() - start)
        pointer, _size = struct.unpack("<QQ", self._ask(rpc_wire.alloc_request(0, size), 16))
        if not pointer:
            raise WorkerNotReadyError(self._endpoint, reason=f"cannot allocate {size} bytes")
        seconds = self._time_transfer(pointer, size, clock)
        # The worker frees the buffer itself when this connection ends.
        return LinkSpeed(statistics.median(trips), size / seconds)

    def _time_transfer(self, pointer: int, size: int, clock: Callable[[], float]) -> float:
        base_request = rpc_wire.request(rpc_wire.BUFFER_GET_BASE, struct.pack("<Q", pointer))
        (base,) = struct.unpack("<Q", self._ask(base_request, 8))
        chunk = bytes(_CHUNK)
        start = clock()
        self._send(rpc_wire.set_tensor_head(pointer, base, size))
        for sent in range(0, size, _CHUNK):
            self._send(chunk[: size - sent])
        # SET_TENSOR has no reply; the next reply proves that all of it was taken.
        self._ask(rpc_wire.request(rpc_wire.DEVICE_COUNT), 4)
        return max(clock() - start, 1e-9)

    def _shake_hands(self, fingerprint: str) -> tuple[int, int, int]:
        self._send(rpc_wire.hello_request(fingerprint))
        try:
            reply = rpc_wire.parse_hello(self._receive())
        except ValueError as error:
            raise WorkerNotReadyError(self._endpoint, reason=_STRANGE) from error
        if reply.fingerprint != fingerprint:
            theirs = reply.fingerprint or "without ggufcluster's patches"
            raise WorkerFingerprintError(self._endpoint, theirs=theirs, ours=fingerprint)
        return reply.version

    def _ask(self, message: bytes, size: int) -> bytes:
        self._send(message)
        answer = self._receive()
        if len(answer) != size:
            raise WorkerNotReadyError(
                self._endpoint, reason=f"answered with {len(answer)} bytes instead of {size}"
            )
        return answer

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise WorkerNotReadyError(self._endpoint, reason=_words(error)) from error

    def _receive(self) -> bytes:
        (size,) = struct.unpack("<Q", self._read(8))
        if size > _REPLY_LIMIT:
            raise WorkerNotReadyError(self._endpoint, reason=_STRANGE)
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except OSError as error:
                raise WorkerNotReadyError(self._endpoint, reason=_words(error)) from error
            if not part:
                reason = "closed the connection in the middle of an answer"
                raise WorkerNotReadyError(self._endpoint, reason=reason)
            data += part
        return data


def probe_worker(endpoint: str, fingerprint: str, *, timeout: float) -> WorkerReport:
    """Shake hands, ask for memory and leave at once.

    Raises:
        WorkerFingerprintError: The worker runs another engine.
        WorkerNotReadyError: No complete answer within `timeout` seconds.
    """
    with RpcClient(endpoint, fingerprint, timeout=timeout) as client:
        return WorkerReport(client.version, client.devices())


def measure_link(endpoint: str, fingerprint: str, *, timeout: float) -> LinkSpeed:
    """Time the link to an idle worker: small requests, then 64 MiB, less on a slow link.

    Raises:
        WorkerError: The worker is not ours or did not answer.
    """
    with RpcClient(endpoint, fingerprint, timeout=timeout) as client:
        first = client.link_speed(size=_CHUNK)
        # A tenth of a second at the first rate is enough to be sure, and never a long wait.
        size = int(min(_LINK_BYTES, max(_CHUNK, first.rate / 10)))
        second = client.link_speed(size=size)
        return LinkSpeed(min(first.round_trip, second.round_trip), max(first.rate, second.rate))


def _words(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    return (error.strerror or str(error)).lower()
