"""The hosts themselves, and SSH between them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.hosts.netns import Hosts, obstacle, running_hosts
from tests.waiting import PATIENCE, wait_for

if TYPE_CHECKING:
    import subprocess

# Runs on a host: connects to another and prints what it found as JSON.
VISIT = """
import json, sys
from ggufcluster.adapters.ssh import SshRemote, find_target
from ggufcluster.core.command import script
from ggufcluster.core.paths import PROBE, paths_from_probe
from ggufcluster.core.worker_address import parse_worker

remote = SshRemote(find_target(parse_worker(sys.argv[1])), wait=float(sys.argv[2]))
paths = paths_from_probe(remote.run(script(PROBE), timeout=120).stdout)
address = remote.run(script("ip -br address show dev eth0; echo $HOME"), timeout=120).stdout
print(json.dumps({
    "own": remote.own_address, "peer": remote.peer_address, "name": remote.name,
    "cache": str(paths.cache), "state": str(paths.state), "address": address,
}))
remote.close()
"""


def visit(hosts: Hosts, start: int, worker: str, *, wait: float = 60.0) -> dict[str, Any]:
    """Connect from one host to another and return what is found there."""
    done = hosts.run_in(start, [sys.executable, "-c", VISIT, worker, str(wait)])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("start", "end"), [(1, 2), (3, 1)])
def test_ssh_from_one_host_to_another(hosts: Hosts, start: int, end: int) -> None:
    """A command runs on the other host, with that host's own folders, over the fabric."""
    found = visit(hosts, start, hosts[end].address)

    assert (found["own"], found["peer"]) == (hosts[start].address, hosts[end].address)
    assert found["name"] == f"root@{hosts[end].address}"
    assert found["cache"] == f"{hosts[end].folder}/cache/ggufcluster"
    assert found["state"] == f"{hosts[end].folder}/state/ggufcluster"
    assert f"{hosts[end].address}/24" in found["address"]
    assert found["address"].splitlines()[-1] == str(hosts[end].home)


def test_ssh_through_a_third_host(hosts: Hosts) -> None:
    """ProxyJump in the head's own configuration leads over another host."""
    config = hosts[1].home / ".ssh" / "config"
    before = config.read_text()
    config.write_text(
        f"Host far\n  HostName {hosts[3].address}\n  ProxyJump {hosts[2].address}\n{before}"
    )

    found = visit(hosts, 1, "far")

    config.write_text(before)
    assert f"{hosts[3].address}/24" in found["address"]
    assert (found["own"], found["peer"]) == (hosts[1].address, hosts[3].address)


def test_processes_and_sockets_are_told_per_host(hosts: Hosts) -> None:
    """A server on one host is seen there and nowhere else, and nothing of it after its end."""
    listen = "import socket, time; s = socket.create_server(('{}', 50052)); time.sleep(300)"
    text = listen.format(hosts[2].address)
    server = hosts.start_in(2, [sys.executable, "-c", text])
    wait_for(lambda: hosts.listening(2) == {f"{hosts[2].address}:50052"}, what="the server")

    assert text in hosts.processes(2)[server.pid]
    assert server.pid not in hosts.processes(1)
    assert hosts.listening(1) == set()
    server.kill()
    server.communicate()
    assert hosts.listening(2) == set()
    assert server.pid not in hosts.processes(2)


def test_pulled_cable_makes_a_host_unreachable(hosts: Hosts) -> None:
    """With its cable pulled a host is unreachable within the wait; put back, it answers again."""
    hosts.link(2).down()
    done = hosts.run_in(1, [sys.executable, "-c", VISIT, hosts[2].address, "1"])
    hosts.link(2).up()

    assert "HostUnreachableError: cannot reach 10.20.20.2" in done.stderr
    assert visit(hosts, 1, hosts[2].address)["peer"] == hosts[2].address


def test_limited_link_can_be_freed_again(hosts: Hosts) -> None:
    """A rate limit shows at both ends of a cable and goes when lifted."""
    show = ["tc", "qdisc", "show", "dev", "eth0"]
    hosts.link(3).limit("100mbit")
    limited = hosts.run_in(3, show, check=True).stdout
    hosts.link(3).unlimit()

    assert "tbf" in limited
    assert "rate 100Mbit" in limited
    assert "tbf" not in hosts.run_in(3, show, check=True).stdout


def test_hosts_are_removed_even_on_failure(tmp_path: Path) -> None:
    """After an error neither a namespace nor a process of the hosts is left."""
    if (reason := obstacle()) is not None:
        pytest.skip(reason)
    running: list[subprocess.Popen[str]] = []

    with pytest.raises(ZeroDivisionError):
        fail_among_hosts(tmp_path, running)

    assert [process.wait(PATIENCE) for process in running] == [-9]
    running[0].communicate()
    assert namespaces("ggc-fails") == []


def fail_among_hosts(folder: Path, running: list[subprocess.Popen[str]]) -> None:
    """Make hosts, start a process on one of them and fail."""
    with running_hosts(folder, name="ggc-fails") as hosts:
        running.append(hosts.start_in(1, ["sleep", "300"]))
        assert len(namespaces("ggc-fails")) == 4
        raise ZeroDivisionError


def namespaces(prefix: str) -> list[str]:
    """Return the names of this run's namespaces with a prefix."""
    mine = f"{prefix}-{os.getpid()}-"
    return [path.name for path in Path("/run/netns").iterdir() if path.name.startswith(mine)]
