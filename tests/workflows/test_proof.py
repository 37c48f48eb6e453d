"""Proving that the cluster is what was asked for."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.core.memory import StageMemory
from ggufcluster.core.placement import Device, Share
from ggufcluster.core.server_log import parse_server_log
from ggufcluster.errors import HeadError, ProofError, WorkerNotReadyError
from ggufcluster.workflows.events import Finished
from ggufcluster.workflows.proof import TOOL_QUESTION, layout_failures, prove
from tests.workflows.fakes import CALL, DATA, FakeApi, good_api

if TYPE_CHECKING:
    from collections.abc import Callable

    from ggufcluster.core.server_log import ServerReport
    from ggufcluster.workflows import events

LOG = DATA / "server_logs" / "sparse-two-workers.txt"
REPORT = parse_server_log(LOG.read_text(encoding="utf-8").splitlines())
ENDPOINTS = ("10.20.20.2:50052", "10.20.20.3:50052")
SHARES = (
    Share(Device("RPC0", "a", 1, 1), 0, 5, StageMemory(1, 0, 0)),
    Share(Device("RPC1", "b", 1, 1), 5, 3, StageMemory(1, 0, 0)),
)


def proof(
    report: ServerReport = REPORT,
    api: FakeApi | None = None,
    *,
    sparse: bool = True,
    tool_check: bool = True,
    watch: Callable[[], None] = lambda: None,
    give_up: Callable[[], None] = lambda: None,
) -> list[events.Event]:
    """Prove with these findings and return the events."""
    return list(
        prove(
            report,
            api or good_api(),
            shares=SHARES,
            endpoints=ENDPOINTS,
            sparse=sparse,
            tool_check=tool_check,
            watch=watch,
            give_up=give_up,
        )
    )


def answering(message: Any) -> FakeApi:
    """Return an API that answers a chat with this message."""
    answer = {"choices": [{"message": message}]}
    return FakeApi(answers={"/v1/chat/completions": answer})


def test_a_good_cluster_is_proven() -> None:
    """The last event lists what was proven, and only that."""
    assert proof()[-1] == Finished(
        "Proving the cluster", "layers where planned, sparse attention on, a tool call parsed"
    )
    assert proof(sparse=False, tool_check=False)[-1] == Finished(
        "Proving the cluster", "layers where planned"
    )


def test_the_tool_is_asked_for_only_if_wanted() -> None:
    """Without the check no question is sent."""
    api = FakeApi()
    proof(api=api, tool_check=False)
    assert api.asked == []
    assert TOOL_QUESTION["tools"][0]["function"]["name"] == "get_weather"


def test_layers_elsewhere_and_empty_workers_are_named() -> None:
    """Every device with other layers and every worker without weights is a failure of its own."""
    report = replace(REPORT, layers={"RPC0": 8}, weights={ENDPOINTS[0]: 4.7})
    assert layout_failures(report, SHARES, ENDPOINTS) == [
        "RPC0 holds 8 layers, planned were 5",
        "RPC1 holds 0 layers, planned were 3",
        "worker 10.20.20.3:50052 holds no weights",
    ]
    with pytest.raises(ProofError) as caught:
        proof(report)
    assert len(caught.value.failures) == 3


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (replace(REPORT, flash_attention=False), "flash attention off"),
        (replace(REPORT, kv_unified=True), "unified KV cache on"),
        (replace(REPORT, indexer=False), "indexer cache not made"),
        (replace(REPORT, dense_reason="graph: MSA requires it"), "graph: MSA requires it"),
    ],
)
def test_dense_attention_is_a_failure_where_sparse_was_expected(
    report: ServerReport, reason: str
) -> None:
    """The failure says why; where sparse attention is not expected, dense is right."""
    with pytest.raises(ProofError, match="sparse attention is off") as caught:
        proof(report)
    assert reason in str(caught.value)
    proof(report, sparse=False)


def test_no_question_is_asked_of_a_wrong_cluster() -> None:
    """A wrong layout is told at once, without waiting for an answer."""
    api = good_api()
    with pytest.raises(ProofError):
        proof(replace(REPORT, layers={}), api)
    assert api.asked == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": "It is sunny."}, "no tool call was parsed; the answer was 'It is sunny.'"),
        ({"content": None, "tool_calls": None}, "no tool call was parsed; the answer was ''"),
        (
            {"tool_calls": [{"function": {"name": "get_time", "arguments": "{}"}}]},
            "the tool call came out as get_time({})",
        ),
        (
            {"tool_calls": [{"function": {"name": "get_weather", "arguments": "{"}}]},
            "came out as get_weather({)",
        ),
        (
            {"tool_calls": [{"function": {"name": "get_weather", "arguments": '{"city": 3}'}}]},
            "came out as get_weather",
        ),
        (
            {"tool_calls": [{"function": {"name": "get_weather", "arguments": "[]"}}]},
            "came out as get_weather([])",
        ),
        ({"tool_calls": [{}]}, "the tool call was answered with"),
        ({"tool_calls": [{"function": CALL}]}, "the tool call was answered with"),
        ("text", "the tool call was answered with"),
    ],
)
def test_any_other_answer_is_a_failure(message: Any, reason: str) -> None:
    """A text, another tool, broken arguments or a strange form: each is named, none crashes."""
    with pytest.raises(ProofError) as caught:
        proof(api=answering(message))
    assert reason in caught.value.failures[0]
    assert len(caught.value.failures[0]) < 400


@pytest.mark.parametrize("answer", [{}, [], {"choices": []}, {"choices": [None]}, None])
def test_an_answer_of_another_form_is_a_failure(answer: Any) -> None:
    """What is no chat completion at all is shown."""
    with pytest.raises(ProofError, match="was answered with"):
        proof(api=FakeApi(answers={"/v1/chat/completions": answer}))


def test_a_failed_call_is_a_failure() -> None:
    """An error of the API is part of the proof's verdict."""
    api = FakeApi(answers={"/v1/chat/completions": HeadError("answered 500: no parser")})
    with pytest.raises(ProofError, match="the tool call failed: answered 500: no parser"):
        proof(api=api)


def test_a_lost_part_is_the_cause_of_a_failed_call() -> None:
    """When a worker has ended meanwhile, that is told instead of what followed from it."""
    api = FakeApi(answers={"/v1/chat/completions": HeadError("disconnected")})

    def watch() -> None:
        raise WorkerNotReadyError("w", reason="its RPC server has ended")

    with pytest.raises(WorkerNotReadyError, match="has ended"):
        proof(api=api, watch=watch)


def test_a_part_frozen_during_the_call_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no answer comes the parts are watched; one that is lost ends the head and the wait."""
    monkeypatch.setattr("ggufcluster.workflows.proof._WATCH_SECONDS", 0.01)
    ended = Event()
    looks: list[int] = []

    class Silent(FakeApi):
        def post(self, path: str, body: dict[str, Any], *, timeout: float) -> Any:
            assert ended.wait(timeout)
            raise HeadError("disconnected")

    def watch() -> None:
        looks.append(1)
        if len(looks) >= 3:
            raise WorkerNotReadyError("w", reason="frozen")

    with pytest.raises(WorkerNotReadyError, match="frozen"):
        proof(api=Silent(), watch=watch, give_up=ended.set)
    assert len(looks) == 4
