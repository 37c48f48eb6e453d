"""Messages of llama.cpp's RPC protocol, as vendor/llama.cpp/README.md describes them."""

from __future__ import annotations

import struct

import pytest

from ggufcluster.core import rpc_wire

FINGERPRINT = "0123456789abcdef"


def test_hello_is_framed_as_documented() -> None:
    """Command 14, size 40, 24 bytes of capabilities, 16 bytes of fingerprint."""
    message = rpc_wire.hello_request(FINGERPRINT)
    assert message[:9] == b"\x0e" + (40).to_bytes(8, "little")
    assert message[9:33] == bytes(24)
    assert message[33:] == FINGERPRINT.encode()


def test_a_short_fingerprint_is_padded() -> None:
    """A build without fingerprint says `unset`, filled up with zero bytes."""
    assert rpc_wire.hello_request("unset")[33:] == b"unset" + bytes(11)
    assert rpc_wire.parse_hello(bytes(28) + b"unset" + bytes(11)).fingerprint == "unset"


def test_a_reply_gives_version_and_fingerprint() -> None:
    """Major, minor and patch stand first, the fingerprint last."""
    reply = rpc_wire.parse_hello(bytes([3, 6, 1, 0]) + bytes(24) + FINGERPRINT.encode())
    assert reply == rpc_wire.HelloReply((3, 6, 1), FINGERPRINT)


@pytest.mark.parametrize("payload", [b"\x03\x06\x01", bytes(4), bytes(28)])
def test_an_unpatched_reply_has_no_fingerprint(payload: bytes) -> None:
    """A shorter reply is understood and names no engine."""
    assert rpc_wire.parse_hello(payload).fingerprint == ""


def test_a_reply_without_a_version_is_no_reply() -> None:
    """Fewer than three bytes are refused."""
    with pytest.raises(ValueError, match="too short"):
        rpc_wire.parse_hello(b"\x03\x06")


def test_questions_carry_their_numbers() -> None:
    """Device and size travel little-endian, after command and size of the payload."""
    assert rpc_wire.memory_request(2) == struct.pack("<BQI", 11, 4, 2)
    assert rpc_wire.alloc_request(1, 1 << 40) == struct.pack("<BQIQ", 0, 12, 1, 1 << 40)
    assert rpc_wire.request(15) == struct.pack("<BQ", 15, 0)


def test_a_transfer_announces_its_size() -> None:
    """SET_TENSOR counts the tensor, nine bytes of flag and offset, and the data to follow."""
    head = rpc_wire.set_tensor_head(7, 0x1000, 1 << 20)
    command, size = struct.unpack("<BQ", head[:9])
    assert command == rpc_wire.SET_TENSOR
    assert size == len(head) - 9 + (1 << 20)
    assert head[-9:] == bytes(9)
    assert struct.unpack("<QIQ", head[9:29]) == (1, 24, 7)
