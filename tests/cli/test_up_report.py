"""What `up` prints at the end."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from ggufcluster.cli import up_report
from ggufcluster.cli.output import Output
from ggufcluster.core.record import ClusterRecord
from ggufcluster.workflows.dry_run import HostCommands

if TYPE_CHECKING:
    from pathlib import Path

MODEL = 'Mini\'s "Max" $HOME'
ROOT = "http://127.0.0.1:8080"
RECORD = ClusterRecord(
    id="c",
    created=0.0,
    wish='{"context": 4096}',
    build_id="b",
    head_run="/r/c/head",
    root=ROOT,
    api_key_file=None,
    model="MiniMax M3",
    workers=(),
)


def snippets(key_file: str | None = None) -> dict[str, list[str]]:
    """Return the lines of each client's setting."""
    return {title.split()[0]: lines for title, lines in up_report.snippets(ROOT, MODEL, key_file)}


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    """Write a key file with a comment, under an awkward name."""
    path = tmp_path / 'my "own" key\'s'
    path.write_text("# for the house\nsesame one\nother\n", encoding="ascii")
    return str(path)


def shell(text: str) -> list[str]:
    """Run a text in a plain shell and return the words of the line it would call."""
    program = f"show() {{ printf '%s\\n' \"$@\"; }}\n{text}"
    run = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_the_curl_line_runs(key_file: str) -> None:
    """A shell makes of it a call with the URL, a JSON body, and the first key of the file."""
    words = shell("\n".join(snippets()["curl"]).replace("curl ", "show ", 1))
    assert words[0] == f"{ROOT}/v1/chat/completions"
    assert json.loads(words[-1])["messages"][0]["role"] == "user"
    assert not any("Authorization" in word for word in words)
    keyed = shell("\n".join(snippets(key_file)["curl"]).replace("curl ", "show ", 1))
    assert "Authorization: Bearer sesame one" in keyed


def test_claude_code_gets_root_model_and_key(key_file: str) -> None:
    """The variables hold the URL without /v1, the model's exact name and the key."""
    ask = '\nshow "$ANTHROPIC_BASE_URL" "$ANTHROPIC_MODEL" "$ANTHROPIC_AUTH_TOKEN"'
    assert shell("\n".join(snippets(key_file)["Claude"]) + ask) == [ROOT, MODEL, "sesame one"]
    assert shell("\n".join(snippets()["Claude"]) + ask) == [ROOT, MODEL, "none"]


def test_opencode_gets_json(key_file: str) -> None:
    """The setting is whole JSON, whatever model and key file are called."""
    for given in (None, key_file):
        provider = json.loads("\n".join(snippets(given)["opencode"]))["provider"]["ggufcluster"]
        assert provider["options"]["baseURL"] == f"{ROOT}/v1"
        assert list(provider["models"]) == [MODEL]


def test_continue_gets_quoted_values(key_file: str) -> None:
    """Every free text in the YAML is a quoted scalar."""
    values = dict(
        line.strip().removeprefix("- ").split(": ", 1)
        for line in snippets(key_file)["Continue"][1:]
    )
    assert json.loads(values["model"]) == MODEL
    assert key_file in json.loads(values["apiKey"])
    assert values["apiBase"] == f"{ROOT}/v1"


def test_no_key_is_ever_shown(key_file: str) -> None:
    """Settings tell where the key is, never what it is."""
    text = json.dumps(snippets(key_file))
    assert "sesame" not in text


def test_the_report_names_address_and_next_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Every client has its part; the base URL and the next commands stand last, in view."""
    up_report.show(Output(), RECORD, as_json=False)
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-2] == f"MiniMax M3 answers at {ROOT}/v1"
    assert lines[-1] == "ggufcluster status | logs | down"
    assert {"curl", "Open WebUI", "Claude Code"} <= set(lines)


def test_the_report_in_json_is_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts get the base URL and everything that is recorded."""
    up_report.show(Output(as_json=True), RECORD, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["base_url"] == f"{ROOT}/v1"
    assert report["model"] == "MiniMax M3"
    assert report["workers"] == []
    assert report["wish"] == {"context": 4096}


def test_a_dry_run_shows_the_commands_of_each_host(capsys: pytest.CaptureFixture[str]) -> None:
    """Commands are shown unbroken below their host, or as JSON by host."""
    line = "llama-server " + "--option " * 40
    plan = [HostCommands("10.20.20.2", ("# copied", line)), HostCommands("head", ("x [y]",))]
    up_report.show_dry_run(Output(), plan, as_json=False)
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["", "10.20.20.2", "  # copied", f"  {line}", "", "head", "  x [y]"]
    up_report.show_dry_run(Output(as_json=True), plan, as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "10.20.20.2": ["# copied", line],
        "head": ["x [y]"],
    }
