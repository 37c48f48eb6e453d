"""`download --to-workers` over real SSH: a hub beside the head, two workers."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.adapters.sshd import wait_for
from tests.core.test_shards import split
from tests.workflows.tiny_model import tiny

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from tests.hosts.netns import Hosts

# Over so slow a link the large shard would take half a minute: it is met on its way.
LARGE = 12_000_000
SLOW = "3mbit"
SMALL_NAME, LARGE_NAME = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
HUB = """
import sys, time
from pathlib import Path
from ggufcluster.testing import HubServer
with HubServer() as server:
    server.publish("me/model", {path.name: path for path in Path(sys.argv[1]).iterdir()})
    print(server.root, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def published(tmp_path: Path) -> dict[str, str]:
    """Write a model in two shards; return the hash of each."""
    folder = tmp_path / "published"
    folder.mkdir()
    first, second = split(tiny(), 2)
    (folder / SMALL_NAME).write_bytes(first.to_bytes())
    rest = random.Random(4).randbytes(LARGE)
    (folder / LARGE_NAME).write_bytes(second.to_bytes() + rest)
    return hashes(folder)


@pytest.fixture
def head(hosts: Hosts, published: dict[str, str], tmp_path: Path) -> Iterator[Head]:
    """Host 1 with a hub beside it; afterwards no host holds a model."""
    hub = hosts.start_in(1, [sys.executable, "-c", HUB, str(tmp_path / "published")])
    assert hub.stdout
    try:
        yield Head(hosts, hub.stdout.readline().strip())
    finally:
        hub.kill()
        hub.communicate()
        for number in (1, 2, 3):
            hosts.run_in(number, ["rm", "-rf", str(hosts[number].folder / "data")], check=True)


class Head:
    """Runs downloads on host 1."""

    def __init__(self, hosts: Hosts, endpoint: str) -> None:
        self.hosts = hosts
        self.env = {"HF_ENDPOINT": endpoint}

    def run(self, *workers: int) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return self.hosts.run_in(1, self._argv(workers), env=self.env, timeout=120)

    def start(self, *workers: int) -> subprocess.Popen[str]:
        """Start it in the background."""
        return self.hosts.start_in(1, self._argv(workers), env=self.env)

    def _argv(self, workers: tuple[int, ...]) -> list[str]:
        words = [sys.executable, "-m", "ggufcluster", "download", "me/model", "--to-workers"]
        for number in workers:
            words += ["-w", self.hosts[number].address]
        return words


def models(hosts: Hosts, number: int) -> Path:
    """Return where the model lies on a host."""
    return hosts[number].folder / "data" / "ggufcluster" / "models" / "me" / "model"


def hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file of a folder."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }


def is_on_its_way(part: Path) -> bool:
    """Tell whether a part of the large shard has come."""
    return part.exists() and part.stat().st_size > 100_000


def test_two_workers_get_the_model_once_and_a_cut_is_mended(
    head: Head, hosts: Hosts, published: dict[str, str]
) -> None:
    """A lost session keeps what came, the next run sends the rest, and the one after it nothing."""
    part = models(hosts, 3) / f"{LARGE_NAME}.part"
    hosts.link(3).limit(SLOW)
    try:
        cut = head.start(2, 3)
        wait_for(lambda: is_on_its_way(part), what="the large shard", seconds=60)
        for pid, line in hosts.processes(3).items():
            if line.startswith("sshd"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        output, _ = cut.communicate(timeout=60)
    finally:
        hosts.link(3).unlimit()
    wait_for(lambda: not hosts.processes(3), what="the end of what wrote", seconds=60)
    kept = part.stat().st_size

    assert cut.returncode == 20, output
    assert "10.20.20.3" in output
    assert "what has arrived there stays" in output
    assert 0 < kept < LARGE
    assert hashes(models(hosts, 2)) == published
    assert set(hashes(models(hosts, 3))) == {SMALL_NAME, part.name}

    mended = head.run(2, 3)

    assert mended.returncode == 0, mended.stderr
    assert f"{kept:,} bytes are on" in mended.stderr
    assert hashes(models(hosts, 3)) == published
    before = {n: (models(hosts, n) / LARGE_NAME).stat().st_mtime_ns for n in (2, 3)}

    again = head.run(2, 3)

    assert again.returncode == 0, again.stderr
    assert "Sending" not in again.stderr
    assert again.stderr.count("was there already") == 4
    assert {n: (models(hosts, n) / LARGE_NAME).stat().st_mtime_ns for n in (2, 3)} == before


def test_a_full_disk_on_a_worker_is_named_before_and_meanwhile(
    head: Head, hosts: Hosts, published: dict[str, str]
) -> None:
    """Too small a disk gets nothing; one that fills up keeps what came, and then the rest."""
    data = hosts[2].folder / "data"
    data.mkdir(exist_ok=True)
    filler = str(data / "filler")
    disk = ("mount", "-t", "tmpfs", "-o")
    hosts.in_mounts_of(2, (*disk, "size=8m", "tmpfs", str(data)))
    try:
        refused = head.run(2)
        left = hosts.in_mounts_of(2, ("find", str(data), "-type", "f"))
        hosts.in_mounts_of(2, ("mount", "-o", "remount,size=96m", str(data)))
        full = start_and_fill(head, hosts, filler)
        hosts.in_mounts_of(2, ("rm", filler))
        mended = head.run(2)
        found = hosts.in_mounts_of(2, ("sh", "-c", f"cd {models(hosts, 2)} && sha256sum *"))
    finally:
        hosts.in_mounts_of(2, ("umount", str(data)))

    assert refused.returncode == 24, refused.stderr
    assert "10.20.20.2" in refused.stderr
    assert left == ""
    assert full == 24
    assert mended.returncode == 0, mended.stderr
    assert "bytes are on 10.20.20.2 from an earlier run" in mended.stderr.replace("root@", "")
    assert {line.split()[1]: line.split()[0] for line in found.splitlines()} == published


def start_and_fill(head: Head, hosts: Hosts, filler: str) -> int:
    """Start a copy to host 2, fill its disk meanwhile; return the exit code."""
    part = models(hosts, 2) / f"{LARGE_NAME}.part"
    size = ("sh", "-c", f"stat -c %s {part} 2>/dev/null || echo 0")
    hosts.link(2).limit(SLOW)
    try:
        filled = head.start(2)
        came = lambda: int(hosts.in_mounts_of(2, size)) > 100_000  # noqa: E731
        wait_for(came, what="the large shard", seconds=60)
        hosts.in_mounts_of(2, ("sh", "-c", f"cat /dev/zero > {filler} 2>/dev/null || true"))
    finally:
        hosts.link(2).unlimit()
    output, _ = filled.communicate(timeout=60)
    assert "10.20.20.2" in output
    return filled.returncode
