"""A whole cluster on this machine: the command line, a real head and real workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ggufcluster import resources
from ggufcluster.core.engine import PROGRAM_VARIABLES
from ggufcluster.core.toy import RECITE_NAME
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.workflows.toy import write_toys
from tests.waiting import PATIENCE, is_gone, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

_QUESTION = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                    "required": ["city"],
                },
            },
        }
    ],
}


class Cli:
    """Runs ``ggufcluster`` with folders of its own and the shared engine cache."""

    def __init__(self, folder: Path, engine: Engine, port: int) -> None:
        self.port = port
        self.state = folder / "state"
        self.env = {
            **{name: text for name, text in os.environ.items() if name not in PROGRAM_VARIABLES},
            "HOME": str(folder),
            "XDG_STATE_HOME": str(self.state),
            "XDG_CACHE_HOME": str(Path(engine.folder).parents[2]),
            "GGUFCLUSTER_HEAD_PORT": str(port),
            "GGUFCLUSTER_CTX": "2048",
            "GGUFCLUSTER_UBATCH": "256",
        }

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """Start a command in the background."""
        # Started in the background, pytest may itself ignore these signals and pass that on.
        heed = ("env", "--default-signal=INT,HUP,TERM")
        return subprocess.Popen(
            [*heed, sys.executable, "-m", "ggufcluster", *words],
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "ggufcluster", *words],
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )

    def pids(self) -> dict[str, int]:
        """Return the pid of every managed process by the name of its run folder."""
        files = (self.state / "ggufcluster" / "run").glob("*/*/pid")
        return {file.parent.name: int(file.read_text().split()[0]) for file in files}

    def record(self) -> dict[str, Any]:
        """Return the record of the cluster."""
        text = (self.state / "ggufcluster" / "cluster.json").read_text()
        found: dict[str, Any] = json.loads(text)
        return found

    def nothing_left(self) -> bool:
        """Say whether no managed process, run folder or record is left."""
        state = self.state / "ggufcluster"
        return not self.pids() and not (state / "cluster.json").exists()


@pytest.fixture
def cli(tmp_path: Path, engine: Engine, free_port: int) -> Iterator[Cli]:
    """A command line whose cluster is taken down at the end, whatever the test did."""
    made = Cli(tmp_path, engine, free_port)
    yield made
    # A test may have frozen or killed parts on purpose; what is left must go all the same.
    for pid in made.pids().values():
        _signal(pid, signal.SIGKILL)


def test_up_chat_status_logs_down(cli: Cli, toys: dict[str, Path]) -> None:
    """A cluster comes up over two workers, calls a tool, says how it is and goes down whole."""
    up = cli.run("up", "-w", "local:2", "--model", str(toys["recite"]), "--json")
    assert up.returncode == 0, up.stderr
    base = json.loads(up.stdout)["base_url"]
    pids = cli.pids()
    given = [
        Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        for pid in pids.values()
    ]

    answer = httpx.post(f"{base}/chat/completions", json=_QUESTION, timeout=PATIENCE).json()
    message = answer["choices"][0]["message"]
    status = cli.run("status", "--json")
    shown = json.loads(status.stdout)
    logs = cli.run("logs", "local-2")
    down = cli.run("down")

    assert set(pids) == {"head", "local-1", "local-2"}
    assert all(f"{name}={text}" in one for one in given for name, text in PROGRAM_VARIABLES.items())
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"
    assert json.loads(message["tool_calls"][0]["function"]["arguments"])["city"] == "Paris"
    assert message["reasoning_content"].strip()
    assert status.returncode == 0
    assert shown["healthy"] is True
    assert [share["layers"] for share in shown["record"]["shares"]] == [4, 4]
    assert shown["record"]["sparse"] == "on (generic path)"
    assert "Accepted client connection" in logs.stdout
    assert down.returncode == 0
    assert cli.nothing_left()
    assert all(is_gone(pid) for pid in pids.values())


def test_a_model_without_its_indexer_runs_dense(cli: Cli, tmp_path: Path) -> None:
    """The widely used GGUFs lack the indexer: they come up, and `status` says what that costs."""
    template = (resources.templates() / "toy" / "minimax-m3-toy.jinja").read_text()
    paths = write_toys(tmp_path, template=template, shape=ToyShape(indexer=False))
    recite = next(path for path in paths if path.stem == RECITE_NAME)

    up = cli.run("up", "-w", "local:2", "--model", str(recite))
    status = cli.run("status")

    assert up.returncode == 0, up.stderr
    assert "graft-indexer" in up.stderr
    assert status.returncode == 0
    assert "off: the model has no indexer" in status.stdout
    assert cli.run("down").returncode == 0


def test_up_twice_is_idempotent(cli: Cli, toys: dict[str, Path]) -> None:
    """A second `up` with the same wish changes nothing; with another one it refuses."""
    words = ("up", "-w", "local", "--model", str(toys["recite"]))
    assert cli.run(*words).returncode == 0
    before = cli.pids()

    again = cli.run(*words)
    other = cli.run(*words, "--parallel", "2")

    assert again.returncode == 0
    assert cli.pids() == before
    assert other.returncode == 60
    assert "parallel 1 instead of 2" in other.stderr
    assert cli.run("down").returncode == 0


def test_down_twice_is_a_no_op(cli: Cli) -> None:
    """With nothing up, `down` succeeds and says so, and `status` has its own exit code."""
    down = cli.run("down")
    status = cli.run("status")

    assert down.returncode == 0
    assert "no cluster is up" in down.stderr
    assert status.returncode == 61


def test_dead_worker_is_seen_and_up_mends_it(cli: Cli, toys: dict[str, Path]) -> None:
    """A killed worker makes `status` unhealthy; `up` again starts a fresh cluster."""
    words = ("up", "-w", "local:2", "--model", str(toys["recite"]))
    assert cli.run(*words).returncode == 0
    _signal(cli.pids()["local-1"], signal.SIGKILL)

    status = cli.run("status")
    again = cli.run(*words)

    assert status.returncode == 61
    assert "local-1 is dead" in status.stderr
    assert again.returncode == 0, again.stderr
    assert cli.run("status").returncode == 0
    assert cli.run("down").returncode == 0
    assert cli.nothing_left()


def test_killed_head_is_taken_down_with_its_workers(cli: Cli, toys: dict[str, Path]) -> None:
    """After a crash of the head, `down` still ends the workers that it left."""
    assert cli.run("up", "-w", "local:2", "--model", str(toys["recite"])).returncode == 0
    pids = cli.pids()
    _signal(pids["head"], signal.SIGKILL)

    down = cli.run("down")

    assert down.returncode == 0
    assert cli.nothing_left()
    assert all(is_gone(pid) for pid in pids.values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_up_leaves_nothing(
    cli: Cli, toys: dict[str, Path], number: signal.Signals
) -> None:
    """An `up` that is cut off while it loads ends everything that it started."""
    code, stderr, pids = _cut_off(
        cli, toys["recite"], "local-1", lambda up, _: up.send_signal(number)
    )

    assert code == 130, stderr
    assert cli.nothing_left()
    assert all(is_gone(pid) for pid in pids.values())


def test_frozen_worker_during_start_is_named(cli: Cli, toys: dict[str, Path]) -> None:
    """A worker frozen while the head loads is named, and nothing is left, frozen ones included."""
    code, stderr, pids = _cut_off(
        cli, toys["recite"], "local-2", lambda _, pid: _signal(pid, signal.SIGSTOP)
    )

    assert code == 33, stderr
    assert "local-2" in stderr
    assert "frozen" in stderr
    assert cli.nothing_left()
    assert all(is_gone(pid) for pid in pids.values())


def test_taken_port_is_refused(cli: Cli, toys: dict[str, Path]) -> None:
    """A port of the API that is taken is told before anything starts."""
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", cli.port))
        holder.listen()
        up = cli.run("up", "-w", "local", "--model", str(toys["recite"]))

    assert up.returncode == 50
    assert f"127.0.0.1:{cli.port}" in up.stderr
    assert cli.nothing_left()


def test_bad_models_are_refused(cli: Cli, toys: dict[str, Path], tmp_path: Path) -> None:
    """A missing, a truncated and a foreign file each have a line and an exit code of their own."""
    truncated = tmp_path / "short.gguf"
    truncated.write_bytes(toys["recite"].read_bytes()[:-1000])
    foreign = tmp_path / "foreign.gguf"
    foreign.write_bytes(b"PK\x03\x04" + bytes(1000))
    codes = {}
    for path in (tmp_path / "none.gguf", truncated, foreign):
        up = cli.run("up", "-w", "local", "--model", str(path))
        codes[path.name] = up.returncode
        assert str(path) in up.stderr

    assert codes == {"none.gguf": 40, "short.gguf": 42, "foreign.gguf": 41}
    assert cli.nothing_left()


def test_broken_template_is_refused(cli: Cli, toys: dict[str, Path], tmp_path: Path) -> None:
    """A template that does not render is refused with its path before anything starts."""
    template = tmp_path / "broken.jinja"
    template.write_text("{% for message in messages %}{{ message.content }")

    up = cli.run("up", "-w", "local", "--model", str(toys["recite"]), "--template", str(template))

    assert up.returncode == 44
    assert str(template) in up.stderr
    assert cli.nothing_left()


def test_unproven_tool_call_is_an_error(cli: Cli, toys: dict[str, Path]) -> None:
    """Random weights cannot call a tool: the start fails, unless that check is waived."""
    # A small context bounds how long random weights ramble on.
    words = ("up", "-w", "local", "--model", str(toys["random"]), "--ctx", "512")

    proven = cli.run(*words)
    waived = cli.run(*words, "--no-tool-check")

    assert proven.returncode == 53
    assert "tool call" in proven.stderr
    assert waived.returncode == 0, waived.stderr
    assert cli.run("down").returncode == 0
    assert cli.nothing_left()


def test_dry_run_starts_nothing(cli: Cli, toys: dict[str, Path]) -> None:
    """A dry run prints the programs of each host and leaves nothing behind."""
    dry = cli.run("up", "-w", "local:2", "--model", str(toys["recite"]), "--dry-run", "--json")

    commands = json.loads(dry.stdout)

    assert dry.returncode == 0
    assert list(commands) == ["local-1", "local-2", "head"]
    assert "ggml-rpc-server --host 127.0.0.1" in commands["local-1"][-1]
    assert "--parallel 1 --no-kv-unified --flash-attn on" in commands["head"][-1]
    assert not cli.state.exists()


def test_api_key_guards_the_head(cli: Cli, toys: dict[str, Path], tmp_path: Path) -> None:
    """With a key file the API wants the key, and the proof and `status` know it."""
    key_file = tmp_path / "keys"
    key_file.write_text("only-for-this-test\n")
    up = cli.run(
        "up", "-w", "local", "--model", str(toys["recite"]), "--api-key-file", str(key_file)
    )
    url = f"http://127.0.0.1:{cli.port}/v1/chat/completions"

    refused = httpx.post(url, json=_QUESTION, timeout=PATIENCE)
    status = cli.run("status", "--json")

    assert up.returncode == 0, up.stderr
    assert "only-for-this-test" not in up.stdout + up.stderr
    assert refused.status_code == 401
    assert json.loads(status.stdout)["slots"] == 0
    assert cli.run("down").returncode == 0


def _runs_or_ended(cli: Cli, worker: str, up: subprocess.Popen[str]) -> bool:
    return worker in cli.pids() or up.poll() is not None


def _cut_off(
    cli: Cli, model: Path, worker: str, act: Callable[[subprocess.Popen[str], int], None]
) -> tuple[int, str, dict[str, int]]:
    """Start `up` and act as soon as a worker runs; return exit code, stderr and what ran.

    A start that was over before we came to act shows nothing and is done again.
    """
    for _ in range(5):
        up = cli.start("up", "-w", "local:2", "--model", str(model))
        wait_for(partial(_runs_or_ended, cli, worker, up), what=worker)
        pids = cli.pids()
        if up.poll() is None:
            act(up, pids[worker])
        _, stderr = up.communicate(timeout=PATIENCE)
        if up.returncode != 0:
            return up.returncode, stderr, pids
        cli.run("down")
    raise AssertionError("`up` was done before it could be cut off, five times")


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
