"""What a user may write to name a worker, and which of it cannot be one."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.errors import WorkerAddressError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

DEFAULT_SSH_PORT = 22
# llama.cpp takes at most this many RPC servers (GGML_RPC_MAX_SERVERS).
MAX_WORKERS = 16

_LOCAL = re.compile(r"local(?::(?P<count>.*))?")
_BRACKETED = re.compile(r"\[(?P<host>[^\]]*)\](?::(?P<port>.*))?")
_PLAIN = re.compile(r"(?P<host>[^:]*)(?::(?P<port>[^:]*))?")
# A leading '-' would be read as an option by the tools the name may reach.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+\\-]*")


@dataclass(frozen=True, slots=True)
class SshWorker:
    """A machine reached over SSH.

    Attributes:
        host: Name or IP address as written, without brackets.
        user: Login name; None leaves it to the SSH configuration.
        port: SSH port; None leaves it to the SSH configuration.
    """

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}:{self.port}" if self.port else f"{user}{host}"


@dataclass(frozen=True, slots=True)
class LocalWorkers:
    """Workers on this machine, started without SSH."""

    count: int = 1

    def __str__(self) -> str:
        return "local" if self.count == 1 else f"local:{self.count}"


WorkerAddress = SshWorker | LocalWorkers


def parse_worker(text: str) -> WorkerAddress:
    """Read ``[user@]host[:ssh-port]``, ``local`` or ``local:N``; IPv6 stands in brackets.

    Raises:
        WorkerAddressError: The text names no host, or not in one of these forms.
    """
    if text != text.strip() or not text.isprintable() or " " in text:
        raise WorkerAddressError(text, reason="spaces and control characters have no place here")
    local = _LOCAL.fullmatch(text)
    return _local_workers(text, local["count"]) if local else _ssh_worker(text)


def check_workers(
    workers: Sequence[WorkerAddress],
    resolved: Mapping[str, Sequence[str]],
    own_addresses: Collection[str],
) -> None:
    """Refuse a worker named twice and an SSH worker that is the head itself.

    Args:
        workers: What the user named, in order.
        resolved: IP addresses by host as written; a host that this machine cannot resolve (one
            behind a jump host, say) may be absent and is compared by its name alone.
        own_addresses: IP addresses of this machine.

    Raises:
        WorkerAddressError: Naming the first worker that cannot be used.
    """
    taken: dict[tuple[str, int], WorkerAddress] = {}
    for worker in workers:
        names = _identities(worker, resolved)
        if isinstance(worker, SshWorker):
            _refuse_head(worker, names, own_addresses)
        for name in names:
            _refuse_second(worker, taken.get(name))
        taken.update(dict.fromkeys(names, worker))


def require_endpoint(text: str) -> str:
    """Return the ``address:port`` of a worker that runs already, or raise `WorkerAddressError`."""
    host, _, port = text.rpartition(":")
    if not host or not _is_port(port):
        raise WorkerAddressError(text, reason="write it as address:port, such as 10.20.20.2:50052")
    return text


def _local_workers(text: str, count: str | None) -> LocalWorkers:
    if count is None:
        return LocalWorkers()
    if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= MAX_WORKERS:
        raise WorkerAddressError(text, reason=f"local:N needs a number from 1 to {MAX_WORKERS}")
    return LocalWorkers(int(count))


def _ssh_worker(text: str) -> SshWorker:
    user, at, rest = text.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise WorkerAddressError(text, reason=f"{user!r} is no login name")
    bracketed = _BRACKETED.fullmatch(rest)
    match = bracketed or _PLAIN.fullmatch(rest)
    if match is None:
        raise WorkerAddressError(text, reason="write an IPv6 address as [address]:port")
    host = match["host"]
    _check_ipv6(text, host) if bracketed else _check_name(text, host)
    return SshWorker(host, user=user or None, port=_port(text, match["port"]))


def _check_ipv6(text: str, host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise WorkerAddressError(text, reason=f"{host!r} is no IPv6 address") from None


def _check_name(text: str, host: str) -> None:
    if not host:
        raise WorkerAddressError(text, reason="the host is empty")
    if not _NAME.fullmatch(host):
        raise WorkerAddressError(text, reason=f"{host!r} is no host name or IP address")
    if re.fullmatch(r"[0-9.]+", host):
        _check_ipv4(text, host)


def _check_ipv4(text: str, host: str) -> None:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        raise WorkerAddressError(text, reason=f"{host!r} is no IPv4 address") from None


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 65535


def _port(text: str, port: str | None) -> int | None:
    if port is None:
        return None
    if not _is_port(port):
        raise WorkerAddressError(text, reason="the SSH port is a number from 1 to 65535")
    return int(port)


def _identities(
    worker: WorkerAddress, resolved: Mapping[str, Sequence[str]]
) -> set[tuple[str, int]]:
    if isinstance(worker, LocalWorkers):
        return {("local", 0)}
    names = {worker.host.lower(), *resolved.get(worker.host, ())}
    return {(_canonical(name), worker.port or DEFAULT_SSH_PORT) for name in names}


def _canonical(name: str) -> str:
    try:
        return str(ipaddress.ip_address(name.partition("%")[0]))
    except ValueError:
        return name


def _refuse_head(
    worker: SshWorker, names: set[tuple[str, int]], own_addresses: Collection[str]
) -> None:
    own = {_canonical(address) for address in own_addresses}
    for name, _ in names:
        if name in own or _is_this_machine(name):
            raise WorkerAddressError(
                str(worker), reason=f"{name} is this machine; write 'local' for workers on it"
            )


def _is_this_machine(name: str) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _refuse_second(worker: WorkerAddress, earlier: WorkerAddress | None) -> None:
    if earlier is None:
        return
    if isinstance(worker, LocalWorkers):
        raise WorkerAddressError(
            str(worker), reason="named twice; write local:N for several workers on this machine"
        )
    raise WorkerAddressError(str(worker), reason=f"the same machine as {str(earlier)!r}")
