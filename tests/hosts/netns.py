"""Three hosts on one wire: network namespaces of this machine, each with a real sshd.

They share files, users and process ids with this machine; network, SSH server, home folder and
XDG folders are each host's own. The same SSH key opens all of them, as on a cluster set up by hand.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.adapters.sshd import SSHD, make_key
from tests.waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

REPOSITORY = Path(__file__).resolve().parents[2]
NUMBERS = (1, 2, 3)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SSHD_CONFIG = """
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {home}/.ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
UsePAM no
UseDNS no
StrictModes no
PermitRootLogin yes
Subsystem sftp internal-sftp
SetEnv {variables}
"""


@dataclass(frozen=True, slots=True)
class Host:
    """One of the hosts.

    Attributes:
        number: 1, 2 or 3; also the last part of its address.
        namespace: Name of its network namespace.
        folder: Everything of it lies here.
    """

    number: int
    namespace: str
    folder: Path

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return f"10.20.20.{self.number}"

    @property
    def home(self) -> Path:
        """Home folder of its user."""
        return self.folder / "home"

    def environment(self) -> dict[str, str]:
        """Return HOME and the XDG folders; not below ~/.cache and the like, to catch guesses."""
        kinds = ("cache", "state", "config", "data")
        folders = {f"XDG_{kind.upper()}_HOME": str(self.folder / kind) for kind in kinds}
        return {"HOME": str(self.home), **folders}


@dataclass(frozen=True, slots=True)
class Link:
    """The cable between a host and the switch."""

    switch: str
    port: str
    host: Host

    def down(self) -> None:
        """Pull the cable: nothing passes, and neither end is told so by the other."""
        _ip("-n", self.switch, "link", "set", self.port, "down")

    def up(self) -> None:
        """Put the cable back."""
        _ip("-n", self.switch, "link", "set", self.port, "up")

    def limit(self, rate: str) -> None:
        """Slow both directions down, for example to ``100mbit``."""
        for namespace, device in self._ends():
            bucket = ("tbf", "rate", rate, "burst", "256kb", "latency", "200ms")
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *bucket)

    def unlimit(self) -> None:
        """Lift the limit."""
        for namespace, device in self._ends():
            _run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root")

    def _ends(self) -> tuple[tuple[str, str], ...]:
        return ((self.switch, self.port), (self.host.namespace, "eth0"))


class Hosts:
    """All three hosts and the switch between them; see `running_hosts`."""

    def __init__(self, folder: Path, *, run: str) -> None:
        self._switch = f"{run}-sw"
        self._hosts = {n: Host(n, f"{run}-{n}", folder / str(n)) for n in NUMBERS}
        self._servers: list[subprocess.Popen[bytes]] = []

    def __getitem__(self, number: int) -> Host:
        return self._hosts[number]

    def run_in(
        self,
        number: int,
        argv: Sequence[str],
        *,
        timeout: float = PATIENCE,
        env: Mapping[str, str] | None = None,
        check: bool = False,
        input: str | None = None,  # noqa: A002 - the name that subprocess gives it
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a host to its end, with that host's environment; output is text."""
        return subprocess.run(
            self.command(number, argv),
            env=self.environment(number, env),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
            input=input,
        )

    def start_in(
        self, number: int, argv: Sequence[str], *, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a program on a host; its stderr goes into its stdout."""
        return subprocess.Popen(
            self.command(number, argv),
            env=self.environment(number, env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def command(self, number: int, argv: Sequence[str]) -> list[str]:
        """Return the words that run a program on a host."""
        return ["ip", "netns", "exec", self[number].namespace, *argv]

    def environment(self, number: int, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a program on a host: its own, and where the package lies."""
        return {
            "PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(REPOSITORY),
            **self[number].environment(),
            **(more or {}),
        }

    def processes(self, number: int) -> dict[int, str]:
        """Return the processes of a host, its SSH server aside: command lines by process id."""
        servers = {server.pid for server in self._servers}
        found = _processes_of(self[number].namespace)
        return {pid: line for pid, line in found.items() if pid not in servers}

    def listening(self, number: int) -> set[str]:
        """Return the TCP sockets that listen on a host, its SSH server aside: address:port."""
        return _sockets_of(self[number].namespace) - {f"{self[number].address}:22"}

    def in_mounts_of(self, number: int, argv: Sequence[str]) -> str:
        """Run a program among the mounts that a host's SSH sessions see; return its stdout."""
        server = self._servers[NUMBERS.index(number)]
        return _run("nsenter", "--target", str(server.pid), "--mount", *argv)

    def link(self, number: int) -> Link:
        """Return the cable of a host."""
        return Link(self._switch, f"port{number}", self[number])

    def build(self) -> None:
        """Make namespaces, cables, keys and SSH servers."""
        Path("/run/sshd").mkdir(exist_ok=True)
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge0", "up")
        for host in self._hosts.values():
            self._plug_in(host)
        self._make_keys()
        for host in self._hosts.values():
            self._start_server(host)

    def remove(self) -> None:
        """End every process of the hosts and remove the namespaces, whatever state they are in."""
        names = [self._switch, *(host.namespace for host in self._hosts.values())]
        for name in names:
            _end_processes_of(name)
        for server in self._servers:
            server.wait()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _plug_in(self, host: Host) -> None:
        port = f"port{host.number}"
        _ip("netns", "add", host.namespace)
        peer = ("type", "veth", "peer", "name", "eth0", "netns", host.namespace)
        _ip("-n", self._switch, "link", "add", port, *peer)
        _ip("-n", self._switch, "link", "set", port, "master", "bridge0", "up")
        _ip("-n", host.namespace, "link", "set", "lo", "up")
        _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", host.namespace, "link", "set", "eth0", "up")

    def _make_keys(self) -> None:
        first = self[1]
        lines = []
        for host in self._hosts.values():
            (host.home / ".ssh").mkdir(parents=True, mode=0o700)
            kind, key = _public_half(make_key(host.folder / "host_key"))
            lines.append(f"{host.address} {kind} {key}\n")
        private = make_key(first.home / ".ssh" / "id_ed25519")
        for host in self._hosts.values():
            folder = host.home / ".ssh"
            if host is not first:
                shutil.copy(private, folder)
            shutil.copy(private.with_suffix(".pub"), folder / "authorized_keys")
            (folder / "known_hosts").write_text("".join(lines))
            config = f"Host *\n  User root\n  IdentityFile {folder}/{private.name}\n"
            (folder / "config").write_text(config)

    def _start_server(self, host: Host) -> None:
        variables = " ".join(f"{name}={value}" for name, value in host.environment().items())
        config = host.folder / "sshd_config"
        config.write_text(
            _SSHD_CONFIG.format(
                address=host.address, folder=host.folder, home=host.home, variables=variables
            )
        )
        with (host.folder / "sshd.log").open("ab") as log:
            self._servers.append(
                subprocess.Popen(
                    self.command(host.number, [str(SSHD), "-D", "-e", "-f", str(config)]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
        listens = f"{host.address}:22"
        wait_for(lambda: listens in _sockets_of(host.namespace), what=f"sshd on {listens}")


@contextlib.contextmanager
def running_hosts(folder: Path, *, name: str = "ggc") -> Iterator[Hosts]:
    """Yield three running hosts and remove them afterwards, whatever happens."""
    hosts = Hosts(folder, run=f"{name}-{os.getpid()}")
    try:
        hosts.build()
        yield hosts
    finally:
        hosts.remove()


def obstacle() -> str | None:
    """Return why such hosts cannot be made here, None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc", "ss", "ssh-keygen") if shutil.which(tool) is None]
    if missing or SSHD is None:
        return f"not installed: {', '.join(missing or ['sshd'])}"
    return _try_namespace(f"ggc-{os.getpid()}-try")


def _try_namespace(name: str) -> str | None:
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        return f"ip netns add: {made.stderr.strip()}"
    words = ["ip", "netns", "exec", name, "true"]
    used = subprocess.run(words, check=False, capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None if used.returncode == 0 else f"ip netns exec: {used.stderr.strip()}"


def _sockets_of(namespace: str) -> set[str]:
    lines = _run("ip", "netns", "exec", namespace, "ss", "-H", "-l", "-t", "-n").splitlines()
    return {line.split()[3] for line in lines}


def _processes_of(namespace: str) -> dict[int, str]:
    try:
        inode = Path(f"/run/netns/{namespace}").stat().st_ino
    except FileNotFoundError:
        return {}
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return {pid: _command_line(pid) for pid in pids if _namespace_inode(pid) == inode}


def _namespace_inode(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None  # gone by now, or a zombie, which has no namespace left


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def _end_processes_of(namespace: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while (pids := _processes_of(namespace)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _public_half(private: Path) -> tuple[str, str]:
    match = re.match(r"(\S+) (\S+)", private.with_suffix(".pub").read_text())
    assert match is not None
    return match[1], match[2]


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout
