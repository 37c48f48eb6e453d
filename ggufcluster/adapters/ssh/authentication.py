"""Logging in with keys: configured ones, those of a running agent, the usual files."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko
from paramiko.pkey import UnknownKeyType

from ggufcluster.errors import AuthenticationError, HostUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ggufcluster.core.ssh_config import SshTarget

_UNREADABLE = (ValueError, OSError, paramiko.SSHException, UnknownKeyType)


def authenticate(transport: paramiko.Transport, target: SshTarget, *, wait: float) -> None:
    """Offer keys one after another until one is taken.

    Raises:
        AuthenticationError: None was; `tried` says which, and which could not be offered and why.
        HostUnreachableError: The connection broke, or the server gave no answer within `wait`.
    """
    tried: list[str] = []
    with contextlib.closing(_Keys(target)) as keys:
        for label, key in keys.offers(tried):
            if _is_taken(transport, target, label, key, tried=tried, wait=wait):
                return
            if not transport.is_active():
                tried.append("the server hung up")
                break
    raise AuthenticationError(target.name, user=target.user, tried=tuple(tried))


def _is_taken(
    transport: paramiko.Transport,
    target: SshTarget,
    label: str,
    key: paramiko.PKey,
    *,
    tried: list[str],
    wait: float,
) -> bool:
    start = time.monotonic()
    try:
        wanted = transport.auth_publickey(target.user, key)
    except paramiko.BadAuthenticationType as error:
        tried.append(f"{label} (it takes only {', '.join(error.allowed_types)})")
        return False
    except paramiko.AuthenticationException:
        if transport.is_active() and time.monotonic() - start >= wait:
            reason = f"no answer to the login within {wait:g} s"
            raise HostUnreachableError(target.name, reason=reason) from None
        tried.append(label)
        return False
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise HostUnreachableError(target.name, reason=f"login broke off: {error}") from None
    if wanted:
        tried.append(f"{label} (taken, but it wants {', '.join(wanted)} too)")
    return not wanted


class _Keys:
    """The private keys that may be offered to a host."""

    def __init__(self, target: SshTarget) -> None:
        self._target = target
        self._agent = paramiko.Agent() if target.use_agent else None

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    def offers(self, tried: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
        """Yield keys with their labels; note in `tried` what cannot be offered."""
        if self._target.chosen_identities:
            # Before the agent's: a server hangs up after a few wrong keys.
            yield from self._from_files(tried)
            yield from self._from_agent()
        else:
            yield from self._from_agent()
            yield from self._from_files(tried)

    def _from_agent(self) -> Iterator[tuple[str, paramiko.PKey]]:
        if self._agent is None:
            return
        own = {blob for path in self._target.identities for blob in _public_halves(path)}
        for key in self._agent.get_keys():
            if key.get_base64() in own or not self._target.identities_only:
                yield f"agent key {key.comment or key.get_name()}", key

    def _from_files(self, tried: list[str]) -> Iterator[tuple[str, paramiko.PKey]]:
        for path in self._target.identities:
            key = _load(path, tried, missing_matters=self._target.chosen_identities)
            if key is not None:
                yield path, key


def _load(path: str, tried: list[str], *, missing_matters: bool) -> paramiko.PKey | None:
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        if missing_matters:
            tried.append(f"{path} (no such file)")
    except (TypeError, paramiko.PasswordRequiredException):
        tried.append(f"{path} (locked by a passphrase: ssh-add it to a running agent)")
    except _UNREADABLE:
        tried.append(f"{path} (not readable as a private key)")
    return None


def _public_halves(path: str) -> Iterator[str]:
    for name in (path, f"{path}.pub"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield from Path(name).read_text().split()[1:2]
