"""A real sshd on a high port of this machine, with keys made on the spot."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from ggufcluster.adapters.ssh import SshRemote
from ggufcluster.core.command import command
from ggufcluster.core.known_hosts import known_name
from ggufcluster.core.ssh_config import SshTarget
from tests.waiting import PATIENCE, wait_for

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")

_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
"""


def make_key(path: Path, *, passphrase: str = "", kind: str = "ed25519") -> Path:
    """Make a key pair and return the private half's path."""
    path.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", path], check=True
    )
    return path


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class SshServer:
    """One sshd; `start` and `stop` may be called again and again."""

    folder: Path
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Make its keys, and a client key that it takes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.new_host_key()
        make_key(self.client_key)
        authorized = self.client_key.with_suffix(".pub").read_text()
        (self.folder / "authorized_keys").write_text(authorized)
        (self.folder / "sshd_config").write_text(_CONFIG.format(port=self.port, folder=self.folder))

    def new_host_key(self) -> None:
        """Replace its host key; counts from the next start."""
        make_key(self.folder / "host_key")

    @property
    def client_key(self) -> Path:
        """A private key that it takes."""
        return self.folder / "client_key"

    @property
    def known_hosts(self) -> Path:
        """The client's file of known host keys."""
        return self.folder / "known_hosts"

    def trust(self) -> None:
        """Make its present host key the only known one."""
        kind, key = (self.folder / "host_key.pub").read_text().split()[:2]
        self.known_hosts.write_text(f"{known_name('127.0.0.1', self.port)} {kind} {key}\n")

    def target(
        self,
        *,
        identities: tuple[Path, ...] | None = None,
        jumps: tuple[SshTarget, ...] = (),
        host: str = "127.0.0.1",
        use_agent: bool = False,
    ) -> SshTarget:
        """Return how a client reaches it; nothing of the caller's own SSH set-up is used."""
        chosen = (self.client_key,) if identities is None else identities
        return SshTarget(
            name=host,
            host=host,
            port=self.port,
            user=getpass.getuser(),
            identities=tuple(str(path) for path in chosen),
            chosen_identities=True,
            use_agent=use_agent,
            known_hosts=(str(self.known_hosts),),
            key_name=known_name(host, self.port),
            jumps=jumps,
        )

    def start(self) -> None:
        """Start it and wait until it listens."""
        assert SSHD is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", self.folder / "sshd_config"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(lambda: _listens(self.port), what=f"sshd on port {self.port}")

    def stop(self) -> None:
        """End it and the sessions it serves."""
        if self._process is None:
            return
        for pid in self.session_pids():
            with suppress(ProcessLookupError):  # it may end by itself meanwhile
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._process = None

    def listener_pids(self) -> list[int]:
        """Return the process that takes connections."""
        return [] if self._process is None else [self._process.pid]

    def session_pids(self) -> list[int]:
        """Return the processes of its sessions: its children and theirs that are sshd too."""
        if self._process is None:
            return []
        found = [self._process.pid]
        for parent in found:
            found += [pid for pid in _children(parent) if _name(pid).startswith("sshd")]
        return found[1:]


def say_hello(target: SshTarget, *, accept_new: bool = False, wait: float = 10.0) -> str:
    """Connect, run one command and return what it printed."""
    with closing(SshRemote(target, accept_new_host_keys=accept_new, wait=wait)) as remote:
        return remote.run(command("echo", "hello"), timeout=PATIENCE).stdout


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _children(parent: int) -> list[int]:
    try:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(pid) for pid in children.split()]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
