"""The few messages of llama.cpp's RPC protocol that ggufcluster speaks itself.

Source: ``ggml/src/ggml-rpc/ggml-rpc.cpp`` at our pin, and our handshake patch. A request is one
command byte, a 64-bit size and the payload; a reply is a 64-bit size and the payload. All numbers
are little-endian, all structures packed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

ALLOC_BUFFER = 0
BUFFER_GET_BASE = 3
SET_TENSOR = 6
GET_DEVICE_MEMORY = 11
HELLO = 14
DEVICE_COUNT = 15

FINGERPRINT_BYTES = 16
_CAPS_BYTES = 24
_TENSOR = struct.Struct("<QIQ4I4II16ii10QQQQ64si")
_TYPE_I8 = 24


@dataclass(frozen=True, slots=True)
class HelloReply:
    """What a worker says of itself: protocol version and engine fingerprint."""

    version: tuple[int, int, int]
    fingerprint: str


def request(code: int, payload: bytes = b"") -> bytes:
    """Frame one request."""
    return struct.pack("<BQ", code, len(payload)) + payload


def hello_request(fingerprint: str) -> bytes:
    """Frame the first message; no transport capabilities are offered, so TCP stays."""
    name = fingerprint.encode("ascii").ljust(FINGERPRINT_BYTES, b"\0")
    return request(HELLO, bytes(_CAPS_BYTES) + name)


def parse_hello(payload: bytes) -> HelloReply:
    """Read the reply to HELLO; an unpatched worker's shorter reply has no fingerprint.

    Raises:
        ValueError: It is too short for a version.
    """
    if len(payload) < 3:
        raise ValueError("the reply to HELLO is too short")
    version = (payload[0], payload[1], payload[2])
    name = payload[4 + _CAPS_BYTES :].rstrip(b"\0").decode("ascii", "replace")
    return HelloReply(version, name)


def memory_request(device: int) -> bytes:
    """Frame the question for free and total memory of one device."""
    return request(GET_DEVICE_MEMORY, struct.pack("<I", device))


def alloc_request(device: int, size: int) -> bytes:
    """Frame the request for a buffer of `size` bytes."""
    return request(ALLOC_BUFFER, struct.pack("<IQ", device, size))


def set_tensor_head(buffer: int, base: int, size: int) -> bytes:
    """Frame the part of SET_TENSOR before the `size` data bytes, for a flat byte tensor."""
    tensor = _TENSOR.pack(
        1, _TYPE_I8, buffer,
        size, 1, 1, 1,
        1, size, size, size,
        0, *([0] * 16), 0, *([0] * 10), 0, 0, base, b"probe", 0,
    )  # fmt: skip
    # The zero byte after the tensor says: do not keep this in the file cache.
    payload = tensor + struct.pack("<BQ", 0, 0)
    return struct.pack("<BQ", SET_TENSOR, len(payload) + size) + payload
