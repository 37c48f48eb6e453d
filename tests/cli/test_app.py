"""The command line as a whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import ggufcluster
from ggufcluster import errors
from ggufcluster.cli import app as module
from ggufcluster.cli.app import app, run
from ggufcluster.cli.explain import INTERRUPTED, explain
from ggufcluster.config import SETTINGS

ROOT = Path(ggufcluster.__file__).parents[1]
HEAVY = ("paramiko", "httpx", "rich", "jinja2", "numpy", "huggingface_hub", "llama_cpp")
COMMANDS = (
    "up",
    "down",
    "status",
    "logs",
    "plan",
    "build",
    "prune",
    "download",
    "models",
    "inspect",
    "graft-indexer",
    "toy",
    "config",
    "template",
    "chat",
    "smoke",
)


@pytest.fixture(autouse=True)
def _clean_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every command a home and a folder of its own, and no settings."""
    for name in tuple(os.environ):
        if name.startswith(("GGUFCLUSTER_", "XDG_")):
            monkeypatch.delenv(name)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int | str | None:
    """Run the command line in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["ggufcluster", *words])
    with pytest.raises(SystemExit) as caught:
        run()
    return caught.value.code


def test_importing_the_command_line_is_light() -> None:
    """No heavy package is imported before a command runs: --help stays fast."""
    code = "import sys, ggufcluster.cli.app; print(*sys.modules)"
    words = [sys.executable, "-c", code]
    loaded = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "typer" in loaded.stdout.split()
    assert not set(HEAVY) & set(loaded.stdout.split())


def test_all_commands_are_there() -> None:
    """The commands are these and no others."""
    names = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(names) == set(COMMANDS)


@pytest.mark.parametrize(
    "name", [*COMMANDS, *(f"template {part}" for part in ("regen", "check", "show", "diff"))]
)
def test_help_shows_an_example(name: str) -> None:
    """Each command's help holds an example that begins with a call of it."""
    result = CliRunner().invoke(app, [*name.split(), "--help"])
    assert result.exit_code == 0
    _, mark, examples = result.output.partition("\n  Example")
    assert mark
    assert f"    ggufcluster {name}" in examples.splitlines()[1]
    assert "\\b" not in result.output
    assert max(map(len, result.output.splitlines())) <= 80


def test_help_without_a_command_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's own help names every command, and says on one whole line what it does."""
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(f"  {name} " in result.output for name in COMMANDS)
    for output in (result.output, CliRunner().invoke(app, ["template", "--help"]).output):
        assert "..." not in output.partition("Commands:")[2]


def test_the_version_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--version says name and version and ends well."""
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"ggufcluster {ggufcluster.__version__}\n"


@pytest.mark.parametrize("words", [["nothing"], ["status", "--nonsense"], ["logs", "-n", "0"]])
def test_wrong_use_is_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """An unknown command or option, or a bad value, is exit code 2 with a line on stderr."""
    assert call(monkeypatch, *words) == 2
    assert "Error" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["status"], ["logs"]])
def test_no_cluster_is_unhealthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Without a cluster, status and logs say so and end with status's own code."""
    assert call(monkeypatch, *words) == 61
    assert "no cluster is up" in capsys.readouterr().err


def test_an_error_in_json_is_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json the error is JSON on stderr, and stdout still holds one JSON value."""
    assert call(monkeypatch, "status", "--json") == 61
    out, err = capsys.readouterr()
    assert json.loads(out) == {"healthy": False, "problems": ["no cluster is up"]}
    assert json.loads(err)["error"] == "ClusterUnhealthyError"


def test_down_without_a_cluster_does_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Taking down what is not there is no error, and says so."""
    assert call(monkeypatch, "down", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"ended": False}
    assert call(monkeypatch, "down") == 0
    assert "no cluster is up" in capsys.readouterr().err


def test_config_shows_values_and_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON every setting has value and origin; as a table it fits 80 columns."""
    monkeypatch.setenv("GGUFCLUSTER_HEAD_PORT", "9000")
    assert call(monkeypatch, "config", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == [setting.key for setting in SETTINGS]
    assert shown["head.port"] == {"value": 9000, "origin": "GGUFCLUSTER_HEAD_PORT"}
    assert call(monkeypatch, "config") == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 80
    assert all(setting.key in table for setting in SETTINGS)


def test_a_bad_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bad variable ends a command with the code of settings and a next step."""
    monkeypatch.setenv("GGUFCLUSTER_HEAD_PORT", "0")
    assert call(monkeypatch, "config") == 3
    assert "GGUFCLUSTER_HEAD_PORT" in capsys.readouterr().err


def test_what_errors_call_an_option_is_one() -> None:
    """Every setting but the one that only a file has is an option of `up` by that name."""
    up = typer.main.get_command(app).commands["up"]  # type: ignore[attr-defined]
    options = {name for parameter in up.params for name in parameter.opts}
    file_only = {"msa_index_type", "workers.ready_seconds", "head.stall_seconds"}
    assert {one.key for one in SETTINGS if one.option not in options} == file_only


@pytest.mark.parametrize(
    ("words", "file", "says"),
    [
        (("--port", "0"), "", "error: --port: must be between"),
        (("-w", "local:9"), "", "error: --worker: 9 devices for the 8 layers"),
        ((), "workers.hosts = ['local:9']", "ggufcluster.toml, workers.hosts: 9 devices"),
        (("--template", "t", "--template-style", "own"), "", "error: --template-style: "),
        (("--template", "t"), "template_style = 'own'", "ggufcluster.toml, template_style: "),
    ],
)
def test_what_is_wrong_is_called_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    toys: dict[str, Path],
    words: tuple[str, ...],
    file: str,
    says: str,
) -> None:
    """An option by its name, a setting by its file, also where a workflow is what complains."""
    Path("ggufcluster.toml").write_text(file)
    common = ("--model", str(toys["recite"]), "--dry-run", "--quiet")
    assert call(monkeypatch, "up", *common, *words) == 3
    assert says in capsys.readouterr().err


def test_up_without_a_model_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first thing that is missing is named before anything is built."""
    assert call(monkeypatch, "up", "--worker", "local") == 40
    assert "--model" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["local:2"], ["--", "--ctx-size", "9"]])
def test_up_refuses_words_that_lead_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """A stray word and an option that contradicts the plan are refused before anything else."""
    assert call(monkeypatch, "up", *words) == 3
    assert words[-2:][0].removeprefix("--") in capsys.readouterr().err


def test_toy_writes_models_and_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The folder, its models and their paths as JSON."""
    written: list[Path] = []

    def write(folder: Path, *, template: str, seed: int) -> list[Path]:
        assert "<tool_call>" in template
        assert seed == 3
        written.append(folder)
        return [folder / "a.gguf"]

    monkeypatch.setattr("ggufcluster.workflows.toy.write_toys", write)
    assert call(monkeypatch, "toy", "here", "--seed", "3", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"models": ["here/a.gguf"]}
    assert written == [Path("here")]


@pytest.mark.parametrize(
    "error", [errors.HeadError("x"), errors.PlacementError("x", need=1, have=0)]
)
def test_every_error_ends_with_its_own_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: errors.GgufClusterError,
) -> None:
    """What a command raises becomes a line and the code of the table."""

    def fail(*_args: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("ggufcluster.config.load_settings", fail)
    assert call(monkeypatch, "config") == explain(error)[0]
    assert str(error) in capsys.readouterr().err


def test_an_interrupt_cleans_up_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C ends with its code, and while the command cleans up a second one is ignored."""
    cleaned = []

    def wait(*_args: object, **_options: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            cleaned.append(True)

    monkeypatch.setattr("ggufcluster.config.load_settings", wait)
    assert call(monkeypatch, "config") == INTERRUPTED
    assert cleaned == [True]
    assert capsys.readouterr().err == "interrupted\n"


def test_an_ignored_hangup_stays_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under nohup, a closed terminal does not end a start."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert call(monkeypatch, "--version") == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is module._interrupt


def test_ctrl_c_before_anything_began_is_silent() -> None:
    """While modules are still being imported, Ctrl-C ends the command without a traceback."""
    code = (
        "import builtins, os, signal, sys\n"
        "from ggufcluster.__main__ import main\n"
        "real = builtins.__import__\n"
        "def early(name, *rest):\n"
        "    if name == 'ggufcluster.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = early\n"
        "main()\n"
    )
    # Started in the background, pytest may itself ignore the signal and pass that on.
    words = ["env", "--default-signal=INT", sys.executable, "-c", code]
    done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


def test_a_file_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What the system refuses is an error with path, reason and next step, not a traceback."""
    (tmp_path / "file").touch()
    assert call(monkeypatch, "toy", str(tmp_path / "file")) == 4
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"error: {tmp_path / 'file'}: File exists"
    assert lines[1].startswith("  next: ")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_goes_away_gets_no_complaint(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Output into a pipe whose reader has had enough ends in silence, like other programs'."""
    words = [sys.executable, "-m", "ggufcluster", "config", *options]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(words, check=False, stdout=pipe, stderr=subprocess.PIPE, env=env)
    assert done.returncode == 1
    assert done.stderr == b""


def test_ssh_is_loaded_for_ssh_workers_only() -> None:
    """Wiring, and with it most commands, starts without what takes longest to load."""
    code = "import sys, ggufcluster.wiring; print('paramiko' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
