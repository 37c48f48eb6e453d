"""A far machine as a `Remote`."""

from __future__ import annotations

import contextlib
import getpass
import logging
import secrets
import shlex
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import paramiko

from ggufcluster.adapters.command_host import CommandHost
from ggufcluster.adapters.ssh.connection import addresses_of, log_in, open_tcp, open_tunnel
from ggufcluster.adapters.ssh.files import read_config
from ggufcluster.adapters.ssh.process import SshProcess
from ggufcluster.core.ssh_config import SshTarget, resolve_target
from ggufcluster.errors import ConfigError, HostUnreachableError

if TYPE_CHECKING:
    from ggufcluster.core.command import Command
    from ggufcluster.core.worker_address import SshWorker

DEFAULT_WAIT_SECONDS = 10.0
_BROKEN = (paramiko.SSHException, EOFError, OSError)

# $1 is the process group to end. Signal 0 only asks whether it is still there.
_END_GROUP = """
kill -s TERM -- "-$1" 2>/dev/null || exit 0
count=0
while [ $count -lt 20 ] && kill -s 0 -- "-$1" 2>/dev/null; do sleep 0.1; count=$((count + 1)); done
kill -s KILL -- "-$1" 2>/dev/null
exit 0
"""

# $1 is the command, $2 the mark. The shell stays, to turn a signal into an exit code, and leads the
# process group.
_FED = 'printf "%s %s\\n" "$2" "$$"; sh -c "$1"REDIRECTS; exit $?'

# The session's stdin ends when the connection is lost or this side is killed; a watcher then ends
# the group, which would run on unnoticed otherwise.
_WATCHED = """
printf "%s %s\\n" "$2" "$$"
exec 3<&0
(
  while read -r line; do :; done
  trap "" TERM
  kill -s TERM -- "-$$"
  sleep 2
  kill -s KILL -- "-$$"
) <&3 3<&- >/dev/null 2>&1 &
watcher=$!
sh -c "$1" </dev/null 3<&-REDIRECTS
code=$?
kill -s KILL "$watcher"
exit "$code"
"""

# paramiko logs tracebacks of what is raised here as errors of our own.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


def find_target(worker: SshWorker) -> SshTarget:
    """Complete an address by ``~/.ssh/config`` and ``/etc/ssh/ssh_config``.

    Raises:
        ConfigError: The configuration cannot be read or asks for something unsupported.
    """
    home = Path.home()
    try:
        config = paramiko.SSHConfig.from_text(read_config(home))
        return resolve_target(worker, config.lookup, user=getpass.getuser(), home=str(home))
    except paramiko.ConfigParseError as error:
        raise ConfigError(str(error), source="SSH configuration") from None


class SshRemote(CommandHost):
    """Run commands and write files on a far machine.

    It connects on first use, or by `connect`. A connection found dead is opened anew once, before
    a command is sent; a command is never sent twice.

    Args:
        target: Where and as whom, usually from `find_target`.
        accept_new_host_keys: Add the key of an unknown host to the first of its known_hosts files.
            A changed key is refused all the same.
        wait: Seconds allowed for each of TCP, greeting, key exchange, login and a new session;
            None takes the ConnectTimeout of the target, or ten.
    """

    def __init__(
        self,
        target: SshTarget,
        *,
        accept_new_host_keys: bool = False,
        wait: float | None = None,
    ) -> None:
        self._target = target
        self._accept_new = accept_new_host_keys
        self._wait = wait or target.connect_seconds or DEFAULT_WAIT_SECONDS
        self._hops: list[paramiko.Transport] = []
        self._ends = ("", "")

    @property
    def name(self) -> str:
        """Name for people: ``user@host``."""
        return str(self._target)

    @property
    def own_address(self) -> str:
        """IP address of this machine on the way to the host."""
        if self._target.jumps:
            return _own_address_towards(self.peer_address)
        self._ensure_connected()
        return self._ends[0]

    @property
    def peer_address(self) -> str:
        """IP address by which this machine reaches the host.

        Behind a jump host there is no direct connection; then it is what the host's name resolves
        to on this machine, and nothing proves that it can be reached.
        """
        self._ensure_connected()
        if self._target.jumps:
            return addresses_of(self._target)[0][0]
        return self._ends[1]

    def connect(self) -> None:
        """Open the connection if there is none.

        Raises:
            HostUnreachableError: No answer in time, or none that is SSH.
            HostKeyError: The host's key, or that of a jump host, is unknown or has changed.
            AuthenticationError: No key was taken.
        """
        self._ensure_connected()

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        while self._hops:
            self._hops.pop().close()

    def _ensure_connected(self) -> None:
        if not self._hops or not all(hop.is_active() for hop in self._hops):
            self._reconnect()

    def _reconnect(self) -> None:
        self.close()
        try:
            for target in (*self._target.jumps, self._target):
                self._hops.append(self._next_hop(target))
        except BaseException:
            self.close()
            raise

    def _next_hop(self, target: SshTarget) -> paramiko.Transport:
        if self._hops:
            return self._log_in(open_tunnel(self._hops[-1], target, wait=self._wait), target)
        link = open_tcp(target, wait=self._wait)
        self._ends = (link.getsockname()[0], link.getpeername()[0])
        return self._log_in(link, target)

    def _log_in(
        self, link: socket.socket | paramiko.Channel, target: SshTarget
    ) -> paramiko.Transport:
        try:
            return log_in(link, target, accept_new=self._accept_new, wait=self._wait)
        except BaseException:
            link.close()
            raise

    def _open_session(self) -> paramiko.Channel:
        if self._hops and self._hops[-1].is_active():
            # Only a session that cannot be opened shows a connection that died in silence.
            with contextlib.suppress(HostUnreachableError):
                return self._session()
        self._reconnect()
        return self._session()

    def _session(self) -> paramiko.Channel:
        try:
            return self._hops[-1].open_session(timeout=self._wait)
        except _BROKEN as error:
            raise HostUnreachableError(self.name, reason=f"no session: {error}") from None

    def _start(self, command: Command, *, feed: bool, merge: bool = False) -> SshProcess:
        channel = self._open_session()
        mark = f"ggufcluster-{secrets.token_hex(8)}"
        self._execute(channel, _with_mark(command, mark, feed=feed, merge=merge))
        return SshProcess(channel, mark, host=self.name, end_group=self._end_group)

    def _execute(self, channel: paramiko.Channel, text: str) -> None:
        # paramiko waits without end for the answer; closing the channel ends that wait.
        timer = threading.Timer(self._wait, channel.close)
        timer.start()
        try:
            channel.exec_command(text)
        except _BROKEN as error:
            raise HostUnreachableError(self.name, reason=f"no command: {error}") from None
        finally:
            timer.cancel()

    def _end_group(self, leader: int) -> None:
        if not self._hops or not self._hops[-1].is_active():
            return
        with contextlib.suppress(HostUnreachableError):
            channel = self._session()
            words = ["sh", "-c", _END_GROUP, "sh", str(leader)]
            self._execute(channel, "exec " + shlex.join(words))
            channel.status_event.wait(self._wait)
            channel.close()


def _with_mark(command: Command, mark: str, *, feed: bool, merge: bool) -> str:
    text = _FED if feed else _WATCHED
    redirects = " 2>&1" if merge else ""
    words = ["sh", "-c", text.replace("REDIRECTS", redirects), "sh", command.shell(), mark]
    return "exec " + shlex.join(words)


def _own_address_towards(peer: str) -> str:
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket sends nothing; it only asks the routing table.
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])
