"""The command that frees the disk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ggufcluster.adapters.files import FileLock
from ggufcluster.cli.app import app
from ggufcluster.workflows.build import BuildRequest
from ggufcluster.workflows.prune import current_fingerprints
from tests.workflows.sources import write_texts

if TYPE_CHECKING:
    from pathlib import Path

OLD = "fedcba9876543210-cpu-x86_64-1"


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with an engine of another version and one of this."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (now,) = current_fingerprints(BuildRequest())
    engines = tmp_path / "ggufcluster" / "engines"
    write_texts(engines, {f"{name}/bin/x": "x" for name in (OLD, f"{now}-cpu-x86_64-1")})
    return engines


def test_a_dry_run_tells_what_would_go(engines: Path) -> None:
    """Every path with its size, and the sum; nothing is removed."""
    done = CliRunner().invoke(app, ["prune", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert f"engines/{OLD}" in done.stdout
    assert "would be freed" in done.stdout
    assert len(list(engines.iterdir())) == 2


def test_scripts_get_paths_bytes_and_the_sum(engines: Path) -> None:
    """With --json the report is an object by host, and only the old engine has gone."""
    done = CliRunner().invoke(app, ["prune", "--json"])
    assert done.exit_code == 0, done.output
    (host,) = json.loads(done.stdout).values()
    assert [one["path"] for one in host["removed"]] == [f"engines/{OLD}"]
    assert host["bytes"] == host["removed"][0]["bytes"] > 0
    assert (host["kept"], host["dry_run"]) == ([], False)
    assert len(list(engines.iterdir())) == 1


@pytest.mark.parametrize(
    ("count", "told"),
    [(4, [f"sources/{OLD}{n}" for n in range(4)]), (5, ["5 in sources"])],
)
def test_much_that_stays_is_counted(engines: Path, count: int, told: list[str]) -> None:
    """Of a few entries that stay for one reason the names are told, of more the number."""
    cache = engines.parent
    write_texts(cache / "sources", {f"{OLD}{number}/x": "x" for number in range(count)})
    lock = FileLock(cache / "builds" / "lock")
    assert lock.acquire("a build") is None
    try:
        done = CliRunner().invoke(app, ["prune", "--dry-run"])
    finally:
        lock.release()
    lines = [line.strip() for line in done.stdout.splitlines()]
    kept = [line for line in lines if line.startswith("kept")]
    assert kept == [f"kept: {what}: a build is at work" for what in told]


def test_a_worker_that_is_not_there_stops_it_before(engines: Path, free_port: int) -> None:
    """Hosts are reached before anything is removed anywhere."""
    done = CliRunner().invoke(app, ["prune", "-w", f"127.0.0.1:{free_port}"])
    assert done.exit_code != 0
    assert "cannot reach" in str(done.exception)
    assert len(list(engines.iterdir())) == 2
