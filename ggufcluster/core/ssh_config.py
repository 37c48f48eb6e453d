"""Where and as whom to connect: what the user wrote, completed by the SSH configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ggufcluster.core.known_hosts import known_name
from ggufcluster.core.worker_address import DEFAULT_SSH_PORT, SshWorker, parse_worker
from ggufcluster.errors import ConfigError, WorkerAddressError

# Options of one host, keys in lower case, tokens such as %h already replaced.
Lookup = Callable[[str], Mapping[str, Any]]

SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_SOURCE = "SSH configuration"
_MAX_INCLUDE_DEPTH = 16


@dataclass(frozen=True, slots=True)
class SshTarget:
    """Everything that decides how a host is reached; paths are absolute.

    Attributes:
        name: Host as the user wrote it.
        host: Name or address to dial.
        port: TCP port of its SSH server.
        user: Login name there.
        identities: Private key files to offer, in order; any may be missing.
        chosen_identities: The files were configured rather than defaults, and go before the agent.
        use_agent: Whether keys of a running SSH agent are offered.
        identities_only: Only those agent keys are offered that belong to `identities`.
        known_hosts: Files of known host keys; new keys are added to the first.
        key_name: Name under which those files keep this host.
        jumps: Hosts to pass through, nearest first; their own `jumps` are empty.
        connect_seconds: How long each step of connecting may take; None leaves it to the caller.
    """

    name: str
    host: str
    port: int
    user: str
    identities: tuple[str, ...] = ()
    chosen_identities: bool = False
    use_agent: bool = True
    identities_only: bool = False
    known_hosts: tuple[str, ...] = ()
    key_name: str = ""
    jumps: tuple[SshTarget, ...] = ()
    connect_seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.user}@{self.name}"


def expand_includes(text: str, read: Callable[[str], Sequence[str]], *, depth: int = 0) -> str:
    """Replace each Include line by the files it names, which paramiko's parser does not do.

    Args:
        text: Contents of a configuration file.
        read: Returns the contents of the files that a pattern names.
        depth: How many Include lines led here.

    Raises:
        ConfigError: The files include each other without end.
    """
    if depth > _MAX_INCLUDE_DEPTH:
        raise ConfigError("Include lines lead in a circle", source=_SOURCE)
    lines: list[str] = []
    section = "Host *"
    for line in text.splitlines():
        keyword, *patterns = line.replace("=", " ", 1).split() or [""]
        if keyword.lower() == "include":
            bodies = [body for pattern in patterns for body in read(pattern.strip('"'))]
            lines += [expand_includes(body, read, depth=depth + 1) for body in bodies]
            # A section opened in there ends with its file.
            lines.append(section)
            continue
        if keyword.lower() in ("host", "match"):
            section = line
        lines.append(line)
    return "\n".join(lines)


def resolve_target(worker: SshWorker, lookup: Lookup, *, user: str, home: str) -> SshTarget:
    """Complete an address by the SSH configuration.

    What the user wrote wins. StrictHostKeyChecking is not looked at: host keys are always checked.

    Args:
        worker: The address.
        lookup: Returns the options of a host.
        user: Login name of the caller, the default there.
        home: Home folder of the caller, absolute.

    Raises:
        ConfigError: The configuration asks for something unsupported or malformed.
    """
    return _resolve(worker, lookup, user=user, home=home, passed=frozenset())


def _resolve(
    worker: SshWorker, lookup: Lookup, *, user: str, home: str, passed: frozenset[str]
) -> SshTarget:
    options = lookup(worker.host)
    _refuse_proxy_command(worker, options)
    passed |= {worker.host}
    jumps = _jump_workers(options, passed)
    chain = [_plain_target(jump, lookup(jump.host), user=user, home=home) for jump in jumps]
    if jumps:
        # As with ssh -J: only the nearest jump host may bring jump hosts of its own.
        nearest = _resolve(jumps[0], lookup, user=user, home=home, passed=passed)
        chain[:1] = [*nearest.jumps, replace(nearest, jumps=())]
    return _plain_target(worker, options, user=user, home=home, jumps=tuple(chain))


def _plain_target(
    worker: SshWorker,
    options: Mapping[str, Any],
    *,
    user: str,
    home: str,
    jumps: tuple[SshTarget, ...] = (),
) -> SshTarget:
    host = str(options.get("hostname", worker.host))
    port = worker.port or _port(options)
    identities = options.get("identityfile") or ()
    return SshTarget(
        name=worker.host,
        host=host,
        port=port,
        user=worker.user or str(options.get("user", user)),
        identities=_paths(identities or _DEFAULT_IDENTITIES, home),
        chosen_identities=bool(identities),
        use_agent=str(options.get("identityagent", "")).lower() != "none",
        identities_only=str(options.get("identitiesonly", "no")).lower() == "yes",
        known_hosts=_known_hosts(options, home),
        key_name=str(options.get("hostkeyalias") or known_name(host, port)),
        jumps=jumps,
        connect_seconds=_connect_seconds(options),
    )


def _connect_seconds(options: Mapping[str, Any]) -> float | None:
    text = str(options.get("connecttimeout", ""))
    return float(text) if text.isdecimal() and int(text) > 0 else None


def _refuse_proxy_command(worker: SshWorker, options: Mapping[str, Any]) -> None:
    if options.get("proxycommand") is not None and _jump_text(options) == "none":
        raise ConfigError(
            f"ProxyCommand of {worker.host} is not supported, use ProxyJump", source=_SOURCE
        )


def _jump_workers(options: Mapping[str, Any], passed: frozenset[str]) -> list[SshWorker]:
    if _jump_text(options) == "none":
        return []
    jumps = [_jump_worker(part.strip()) for part in _jump_text(options).split(",")]
    # "Host *" with a ProxyJump covers the jump host too; it must not jump through itself.
    return [] if any(jump.host in passed for jump in jumps) else jumps


def _jump_text(options: Mapping[str, Any]) -> str:
    text = str(options.get("proxyjump") or "none")
    return "none" if text.lower() == "none" else text


def _jump_worker(text: str) -> SshWorker:
    try:
        worker = parse_worker(text.removeprefix("ssh://").rstrip("/"))
    except WorkerAddressError as error:
        raise ConfigError(f"ProxyJump {text!r}: {error.reason}", source=_SOURCE) from None
    return worker if isinstance(worker, SshWorker) else SshWorker(text)


def _port(options: Mapping[str, Any]) -> int:
    text = str(options.get("port", DEFAULT_SSH_PORT))
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise ConfigError(f"Port {text!r} is no number from 1 to 65535", source=_SOURCE)
    return int(text)


def _known_hosts(options: Mapping[str, Any], home: str) -> tuple[str, ...]:
    chosen = str(options.get("userknownhostsfile", "")).split()
    if [name.lower() for name in chosen] == ["none"]:
        chosen = []
    return _paths(chosen or _USER_KNOWN_HOSTS, home) + SYSTEM_KNOWN_HOSTS


def _paths(names: tuple[str, ...] | list[str], home: str) -> tuple[str, ...]:
    return tuple(_absolute(name.replace("%d", home), home) for name in names)


def _absolute(name: str, home: str) -> str:
    if name.startswith("~/"):
        return home + name[1:]
    return name if name.startswith("/") else f"{home}/{name}"
