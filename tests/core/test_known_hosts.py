"""What known_hosts files say."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from ggufcluster.core.known_hosts import (
    Verdict,
    fingerprint,
    judge,
    key_types_of,
    known_line,
    known_name,
    matches,
    parse_known_hosts,
)

FILE = """
# a comment
spark,10.20.20.2 ssh-ed25519 AAAAone with a comment
*.lan,!bad.lan ecdsa-sha2-nistp256 AAAAtwo
[gate]:2222 ssh-ed25519 AAAAthree
@revoked spark ssh-rsa AAAAold
@cert-authority * ssh-ed25519 AAAAca
broken line
"""


def judged(name: str, key: str, key_type: str = "ssh-ed25519") -> Verdict:
    """Judge a key against the file above."""
    return judge(parse_known_hosts(FILE), name, key_type=key_type, key=key)


@pytest.mark.parametrize(
    ("name", "key", "verdict"),
    [
        ("spark", "AAAAone", Verdict.KNOWN),
        ("10.20.20.2", "AAAAone", Verdict.KNOWN),
        ("spark", "AAAAtwo", Verdict.CHANGED),
        ("[gate]:2222", "AAAAthree", Verdict.KNOWN),
        ("gate", "AAAAthree", Verdict.UNKNOWN),
        ("[spark]:2222", "AAAAone", Verdict.UNKNOWN),
        ("bad.lan", "AAAAtwo", Verdict.UNKNOWN),
        ("elsewhere", "AAAAca", Verdict.UNKNOWN),
    ],
)
def test_verdicts(name: str, key: str, verdict: Verdict) -> None:
    """A key is known, unknown or changed by name, port, pattern and exclusion."""
    assert judged(name, key) is verdict


def test_revoked_key_counts_as_changed() -> None:
    """A revoked key is never accepted, not even as a new one."""
    assert judged("spark", "AAAAold", "ssh-rsa") is Verdict.CHANGED


def test_another_key_type_counts_as_changed() -> None:
    """A host known by one type of key only is not trusted with another."""
    assert judged("box.lan", "AAAAone") is Verdict.CHANGED
    assert judged("box.lan", "AAAAtwo", "ecdsa-sha2-nistp256") is Verdict.KNOWN


def test_key_types_leave_out_revoked_ones() -> None:
    """The types to ask a host for are those it is known by."""
    assert key_types_of(parse_known_hosts(FILE), "spark") == ("ssh-ed25519",)


def test_hashed_names() -> None:
    """A hashed name covers the name it was made from and no other; broken hashes cover none."""
    salt = b"12345678901234567890"
    digest = hmac.new(salt, b"[gate]:2222", hashlib.sha1).digest()
    names = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"

    assert matches(names, "[gate]:2222")
    assert not matches(names, "gate")
    assert not matches("|1|broken", "gate")
    assert not matches("|1|!|!", "gate")


def test_a_written_line_is_read_back() -> None:
    """The line for a new key makes that key known under host and port."""
    name = known_name("Spark", 2222)
    known = parse_known_hosts(known_line(name, key_type="ssh-ed25519", key="AAAA"))

    assert name == "[spark]:2222"
    assert judge(known, name, key_type="ssh-ed25519", key="AAAA") is Verdict.KNOWN
    assert known_name("spark", 22) == "spark"


def test_fingerprint_of_a_known_blob() -> None:
    """A fingerprint is the unpadded base64 of SHA-256."""
    assert fingerprint(b"") == "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
