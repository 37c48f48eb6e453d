"""What OpenSSH's known_hosts files say about a host key.

Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT". Hashed names are HMAC-SHA1 over the name.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEFAULT_PORT = 22


class Verdict(Enum):
    """How a host key compares with the known ones."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of a known_hosts file.

    Attributes:
        names: The first field: patterns divided by commas, or one hashed name.
        key_type: For example ``ssh-ed25519``.
        key: The public key in base64.
        revoked: The line forbids this key.
    """

    names: str
    key_type: str
    key: str
    revoked: bool = False


def parse_known_hosts(text: str) -> tuple[KnownKey, ...]:
    """Read every usable line; comments, broken lines and certificate authorities are skipped."""
    keys = (_parse_line(line) for line in text.splitlines())
    return tuple(key for key in keys if key is not None)


def known_name(host: str, port: int) -> str:
    """Return the name under which known_hosts files keep a host."""
    return host.lower() if port == _DEFAULT_PORT else f"[{host.lower()}]:{port}"


def judge(known: Sequence[KnownKey], name: str, *, key_type: str, key: str) -> Verdict:
    """Compare a presented key with the known ones.

    A host that is known by keys of other types only counts as changed: an impostor would present
    just that.
    """
    mine = [entry for entry in known if matches(entry.names, name)]
    same = [entry for entry in mine if (entry.key_type, entry.key) == (key_type, key)]
    if any(entry.revoked for entry in same):
        return Verdict.CHANGED
    if same:
        return Verdict.KNOWN
    return Verdict.CHANGED if any(not entry.revoked for entry in mine) else Verdict.UNKNOWN


def key_types_of(known: Sequence[KnownKey], name: str) -> tuple[str, ...]:
    """Return the key types known for a host, in the order of the files."""
    types = (e.key_type for e in known if not e.revoked and matches(e.names, name))
    return tuple(dict.fromkeys(types))


def matches(names: str, name: str) -> bool:
    """Tell whether the first field of a line covers a host name."""
    if names.startswith("|1|"):
        return _hash_matches(names, name)
    patterns = names.lower().split(",")
    if any(_glob_matches(pattern[1:], name) for pattern in patterns if pattern.startswith("!")):
        return False
    return any(_glob_matches(pattern, name) for pattern in patterns)


def known_line(name: str, *, key_type: str, key: str) -> str:
    """Return the line that makes a key known, without its newline."""
    return f"{name} {key_type} {key}"


def fingerprint(key: bytes) -> str:
    """Return the fingerprint of a public key as ssh-keygen prints it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode()
    return "SHA256:" + digest.rstrip("=")


def _parse_line(line: str) -> KnownKey | None:
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    marker = words.pop(0) if words[0].startswith("@") else ""
    if marker == "@cert-authority" or len(words) < 3:
        return None
    return KnownKey(words[0], key_type=words[1], key=words[2], revoked=marker == "@revoked")


def _glob_matches(pattern: str, name: str) -> bool:
    # Not fnmatch: there '[' opens a character set, here it begins "[host]:port".
    parts = {"*": ".*", "?": "."}
    return bool(re.fullmatch("".join(parts.get(c) or re.escape(c) for c in pattern), name))


def _hash_matches(names: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in names[3:].split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
