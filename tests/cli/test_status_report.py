"""How `status` looks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from ggufcluster.cli import status_report
from ggufcluster.cli.output import Output
from ggufcluster.core.record import ClusterRecord, ShareRecord, WorkerRecord
from ggufcluster.workflows.status import Status

if TYPE_CHECKING:
    import pytest

GIB = 1 << 30
LONG = "spark-with-a-long-name.in-a-long.domain.example"
RECORD = ClusterRecord(
    id="c",
    created=0.0,
    wish='{"context": 4096}',
    build_id="0123456789abcdef-cuda-121a-aarch64-01234567",
    head_run="/r/c/head",
    root="http://10.20.20.1:8080",
    api_key_file="/etc/ggufcluster/keys",
    model="MiniMax M3 [sparse]",
    workers=(
        WorkerRecord("10.20.20.2", "10.20.20.2", "/r", "10.20.20.2", 50052, 1.2e-4, 2.5e9),
        WorkerRecord(LONG, f"spark@{LONG}", "/r", "10.20.20.3", 50052),
    ),
    shares=(
        ShareRecord("RPC0", "10.20.20.2", 0, 30, 97 * GIB),
        ShareRecord("RPC1", LONG, 30, 30, 97 * GIB),
    ),
    context=131_072,
    parallel=2,
    sparse="on",
    template="minimax-m3, the model's own",
    ready=True,
)
STATUS = Status(
    record=RECORD,
    head="ok",
    workers={"10.20.20.2": "alive", LONG: f"unknown: cannot reach {LONG}: timed out"},
    slots=1,
    engine="b1-0123456789abcdef",
    uptime=7800.0,
    problems=(f"{LONG} state is unknown",),
)


def test_it_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Even long names and long reasons keep to 80 columns."""
    status_report.show(Output(), STATUS, as_json=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80


def test_everything_asked_for_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Head, context, slots, attention, template, uptime, workers and layers are there."""
    status_report.show(Output(), STATUS, as_json=False)
    out = capsys.readouterr().out
    for words in (
        *("http://10.20.20.1:8080/v1", "MiniMax M3 [sparse]", "131,072 tokens a slot"),
        *("1 of 2 busy", "sparse attention  on", "minimax-m3, the model's own", "2 h 10 min"),
        *("120 us", "2500 MB/s", "0-29", "30-59", "97.0 GiB"),
    ):
        assert words in out


def test_the_unknown_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    """Slots of a head that does not answer and the link of a local worker are left open."""
    local = WorkerRecord("local", "local", "/r", "127.0.0.1", 50052)
    status = replace(
        STATUS,
        slots=None,
        workers={"local": "alive"},
        record=replace(RECORD, workers=(local,), shares=()),
    )
    status_report.show(Output(), status, as_json=False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["slots", "-"] in rows
    assert ["local", "alive", "127.0.0.1:50052", "-", "-"] in rows


def test_json_holds_the_whole_status(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts get health, problems and the record, and only JSON."""
    status_report.show(Output(as_json=True), STATUS, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is False
    assert report["problems"] == list(STATUS.problems)
    assert report["record"]["wish"] == {"context": 4096}
    assert report["record"]["shares"][1] == {
        "device": "RPC1",
        "host": LONG,
        "first": 30,
        "layers": 30,
        "bytes": 97 * GIB,
    }
