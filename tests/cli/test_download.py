"""The command line of downloads, run as a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ggufcluster
from ggufcluster.adapters.partial_file import read_note
from ggufcluster.testing import Fault, HubServer
from tests.waiting import PATIENCE, wait_for
from tests.workflows.downloads import REPO, content, hashes, shards

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(ggufcluster.__file__).parents[1]


@pytest.fixture
def server() -> Iterator[HubServer]:
    """A hub."""
    with HubServer(prefix="/mirror") as running:
        yield running


def start(server: HubServer, folder: Path, *words: str, **env: str) -> subprocess.Popen[str]:
    """Start a download of made-up contents."""
    command = [sys.executable, "-m", "ggufcluster", "download", "--no-inspect", *words]
    surroundings = os.environ | {
        "HF_ENDPOINT": server.root,
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "no_proxy": "127.0.0.1",
        **env,
    }
    return subprocess.Popen(
        command,
        env=surroundings,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end; return exit code, stdout and stderr."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def told(progress: Iterable[str]) -> Iterator[int]:
    """Yield how many bytes have come, as the lines of --json tell it."""
    events = (json.loads(line) for line in progress)
    return (e["done"] for e in events if e["event"] == "progress" and e["label"] == "Downloading")


def noted(partial: Path) -> int:
    """Return how many bytes are noted to be safe on disk."""
    note = read_note(partial)
    return sum(end - start for start, end in note.done) if note else 0


def test_a_model_lands_where_up_looks_for_it(server: HubServer, tmp_path: Path) -> None:
    """Without --dir it goes under the models' folder, and the report is JSON."""
    files = shards(2, 1000)
    commit = server.publish(REPO, files)

    code, out, err = finish(start(server, tmp_path, REPO, "--json"))

    folder = tmp_path / ".local/share/ggufcluster/models" / REPO
    assert code == 0, err
    report = json.loads(out)
    assert report["commit"] == commit
    assert report["first"] == str(folder / "m-Q4_K_M-00001-of-00002.gguf")
    assert {name: hashes(files)[name] for name in files} == hashes(
        {name: (folder / name).read_bytes() for name in files}
    )
    events = [json.loads(line) for line in err.splitlines()]
    last = {event["label"]: event for event in events if event["event"] == "progress"}
    assert set(last) == {"Downloading", "shard 1 of 2", "shard 2 of 2"}
    assert all(event["done"] == event["total"] for event in last.values())


def test_ctrl_c_keeps_what_came(server: HubServer, tmp_path: Path) -> None:
    """It ends soon with 130, says what is kept, and the next run goes on from there."""
    data = content(3_000_000)
    server.publish(REPO, {"m-Q8_0.gguf": data})
    server.hold(1_000_000)
    words = (REPO, "--dir", "models", "--json")
    process = start(server, tmp_path, *words, "--parts", "3")
    assert process.stderr is not None
    assert next(done for done in told(process.stderr) if done >= 1_000_000) == 1_000_000
    process.send_signal(signal.SIGINT)
    code, _out, err = finish(process)
    assert code == 130
    assert "are kept; repeated, it goes on from there" in err
    assert list((tmp_path / "models").glob("*.gguf")) == []
    server.release()

    code, out, err = finish(start(server, tmp_path, *words))

    assert code == 0, err
    assert json.loads(out)["fetched_bytes"] == 2_000_000
    assert (tmp_path / "models" / "m-Q8_0.gguf").read_bytes() == data


def test_a_killed_download_goes_on(server: HubServer, tmp_path: Path) -> None:
    """After SIGKILL what was noted on disk is used, and the result is right."""
    data = content(60_000_000)
    server.publish(REPO, {"m-Q8_0.gguf": data})
    server.hold(45_000_000)
    # One connection: of several, what was sent to those that were cut short would never be noted.
    process = start(server, tmp_path, REPO, "--dir", "models", "--parts", "1")
    partial = tmp_path / "models" / ".ggufcluster" / "m-Q8_0.gguf.partial"
    wait_for(lambda: noted(partial) >= 30_000_000, what="the note")
    process.kill()
    finish(process)
    kept = noted(partial)
    server.release()

    code, out, err = finish(start(server, tmp_path, REPO, "--dir", "models", "--json"))

    assert code == 0, err
    assert json.loads(out)["fetched_bytes"] == 60_000_000 - kept
    assert (tmp_path / "models" / "m-Q8_0.gguf").read_bytes() == data


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((REPO, "--quant", "Q9"), 86, "there are: Q4_K_M, Q8_0"),
        ((REPO, "--quant", "Q8_0", "--revision", "v7"), 84, "v7"),
        (("me/nothing",), 83, "me/nothing"),
        (("nonsense",), 3, "OWNER/NAME"),
        ((REPO, "--quant", "Q8_0", "--include", "*"), 3, "exclude each other"),
        ((REPO, "--quant", "Q8_0", "--parts", "0"), 2, "parts"),
    ],
)
def test_bad_input_is_one_clear_line(
    server: HubServer, tmp_path: Path, words: tuple[str, ...], code: int, says: str
) -> None:
    """Each kind of bad input has its own exit code and says what to do."""
    server.publish(REPO, shards(2, 10) | {"m-Q8_0.gguf": b"x"})
    found, out, err = finish(start(server, tmp_path, *words))
    assert (found, out) == (code, "")
    assert says in err
    assert "Traceback" not in err


def test_each_refusal_has_its_own_exit_code(server: HubServer, tmp_path: Path) -> None:
    """Gated, ranges ignored, wrong bytes and offline are told apart by the exit code."""
    server.publish(REPO, {"m-Q8_0.gguf": content(3_000_000)})
    server.publish("me/gated", {"m-Q8_0.gguf": content(1000)})
    server.gated.add("me/gated")

    assert finish(start(server, tmp_path, "me/gated"))[0] == 82
    assert finish(start(server, tmp_path, REPO, HF_HUB_OFFLINE="1"))[0] == 81
    server.fail(Fault("whole", times=None))
    # Nobody gets the whole file, which would do, before others have asked for their parts.
    server.hold(0)
    assert finish(start(server, tmp_path, REPO))[0] == 89
    server.release()
    server.heal()
    server.fail(Fault("corrupt", times=None))
    assert finish(start(server, tmp_path, REPO))[0] == 91
    server.heal()
    assert finish(start(server, tmp_path, REPO))[0] == 0


def test_a_proxy_of_the_environment_is_used(server: HubServer, tmp_path: Path) -> None:
    """Requests for names and for parts go to the proxy that the environment names."""
    server.publish(REPO, {"m-Q8_0.gguf": content(1000)})
    root = server.root.replace("127.0.0.1", "hub.invalid")
    # The hub stands in for a proxy: it gets whole addresses for a host that does not exist.
    proxy = server.root.removesuffix("/mirror")
    code, _out, err = finish(
        start(server, tmp_path, REPO, HF_ENDPOINT=root, http_proxy=proxy, HTTP_PROXY=proxy)
    )
    assert code == 0, err
    assert any(asked.path.startswith("http://hub.invalid") for asked in server.asked)


def test_a_token_comes_from_the_environment(server: HubServer, tmp_path: Path) -> None:
    """HF_TOKEN opens a private repository."""
    server.private.add(REPO)
    server.publish(REPO, {"m-Q8_0.gguf": content(1000)})
    assert finish(start(server, tmp_path, REPO))[0] == 83
    assert finish(start(server, tmp_path, REPO, HF_TOKEN=server.token))[0] == 0


def test_workers_are_known_before_anything_is_fetched(server: HubServer, tmp_path: Path) -> None:
    """`--to-workers` without a worker is refused at once, not after 200 GB."""
    server.publish(REPO, shards(2, 1000))
    code, _, err = finish(start(server, tmp_path, REPO, "--to-workers"))
    assert code == 3
    assert "error: --to-workers: no worker is named" in err
    assert "--help" in err
    assert not list(tmp_path.rglob("*.gguf"))


def test_workers_beside_the_head_need_no_second_copy(server: HubServer, tmp_path: Path) -> None:
    """With local workers only, the download is all there is, and one line says so."""
    server.publish(REPO, shards(2, 1000))
    words = (REPO, "--to-workers", "-w", "local:2", "--json")
    code, out, err = finish(start(server, tmp_path, *words))
    assert code == 0, err
    assert len(json.loads(out)["files"]) == 2
    assert err.count("nothing sent to local:2") == 1


def test_several_models_are_named_to_start(server: HubServer, tmp_path: Path) -> None:
    """A pattern that fits two quantisations fetches both, and either can be started."""
    server.publish(REPO, shards(2, 10) | {"m-Q8_0.gguf": b"x"})
    code, out, err = finish(start(server, tmp_path, REPO, "--include", "*.gguf", "--dir", "d"))
    assert code == 0, err
    lines = out.splitlines()
    firsts = [f"{tmp_path}/d/m-{name}" for name in ("Q4_K_M-00001-of-00002.gguf", "Q8_0.gguf")]
    assert lines[-3] == "Start one of them:"
    assert lines[-2:] == [f"  ggufcluster up --model {first}" for first in firsts]


def test_a_model_of_no_use_is_refused_by_its_headers(server: HubServer, tmp_path: Path) -> None:
    """The exit code is that of `inspect`, the way around it is told, and nothing is fetched."""
    server.publish(REPO, {"m-Q8_0.gguf": content(1_000_000)})
    code, out, err = finish(start(server, tmp_path, REPO, "--inspect"))
    assert (code, out) == (41, "")
    assert "not a GGUF file" in err
    assert "--no-inspect" in err
    assert not list(tmp_path.rglob("*.gguf"))


def known(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """List the known models without asking anybody."""
    command = [sys.executable, "-m", "ggufcluster", "models", "--no-ask", *words]
    surroundings = os.environ | {"HOME": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=surroundings, cwd=folder, capture_output=True, text=True, check=True
    )


def test_known_models_are_listed_with_whether_they_fit(tmp_path: Path) -> None:
    """For each its attention, its size and what of this machine's memory it leaves or lacks."""
    found = json.loads(known(tmp_path, "--json").stdout)
    (usable,) = found["nodes"].values()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 <= usable <= total - min(total // 12, 9 << 30)
    models = {model["repository"]: model for model in found["models"]}
    dense = models["unsloth/MiniMax-M3-GGUF"]
    assert not dense["has_indexer"]
    assert models["AesSedai/MiniMax-M3-GGUF"]["has_indexer"]
    assert dense["spare"] == usable - dense["size"]
    assert dense["fits"] is (dense["spare"] >= 0)
    assert models["bartowski/MiniMax-M3-GGUF"]["fits"] is None

    lines = known(tmp_path).stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("UD-IQ4_XS" in line and "dense" in line for line in lines)
