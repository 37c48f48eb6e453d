"""Prove after the start that the cluster is what was asked for.

A healthy answer alone proves nothing: llama.cpp starts as well with a device missing, with layers
elsewhere, or with sparse attention switched off.
"""

from __future__ import annotations

import contextlib
import json
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from ggufcluster.errors import GgufClusterError, HeadError, ProofError
from ggufcluster.workflows.events import Finished, Started, Workflow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ggufcluster.adapters.http import Api
    from ggufcluster.core.placement import Share
    from ggufcluster.core.server_log import ServerReport

_TOOL_SECONDS = 600.0
_TOOL_TOKENS = 2048
_WATCH_SECONDS = 2.0

_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "days": {"type": "integer", "description": "Days to look ahead"},
            },
            "required": ["city"],
        },
    },
}
TOOL_QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the weather in Paris? Use the tool."}],
    "tools": [_TOOL],
    "max_tokens": _TOOL_TOKENS,
}


def prove(
    report: ServerReport,
    api: Api,
    *,
    shares: Sequence[Share],
    endpoints: Sequence[str],
    sparse: bool,
    tool_check: bool,
    watch: Callable[[], None],
    give_up: Callable[[], object],
) -> Workflow[None]:
    """Check the layout and one tool call.

    Args:
        report: What llama-server said while it started.
        api: Its API.
        shares: The planned layers.
        endpoints: Every worker; each must hold weights.
        sparse: Whether sparse attention must be on.
        tool_check: Whether a tool call must be parsed.
        watch: Called while the answer is waited for and before a failure is told; raises if a
            part of the cluster is lost, which is then the cause.
        give_up: Ends the head, and with it the wait for an answer that will not come.

    Raises:
        ProofError: Naming everything that is not as it should be.
    """
    yield Started("Proving the cluster")
    failures = [
        *layout_failures(report, shares, endpoints),
        *sparse_failures(report, wanted=sparse),
    ]
    if tool_check and not failures:
        failures += _tool_failures(lambda: _watched(lambda: _ask(api), watch, give_up))
    if failures:
        watch()
        raise ProofError(tuple(failures))
    proven = ["layers where planned"]
    proven += ["sparse attention on"] if sparse else []
    proven += ["a tool call parsed"] if tool_check else []
    yield Finished("Proving the cluster", ", ".join(proven))


def layout_failures(
    report: ServerReport, shares: Sequence[Share], endpoints: Sequence[str]
) -> list[str]:
    """Name each device without its planned layers and each worker without weights."""
    failures = [
        f"{share.device.name} holds {report.layers.get(share.device.name, 0)} layers,"
        f" planned were {share.layers}"
        for share in shares
        if report.layers.get(share.device.name, 0) != share.layers
    ]
    missing = [endpoint for endpoint in endpoints if not report.weights.get(endpoint)]
    return failures + [f"worker {endpoint} holds no weights" for endpoint in missing]


def sparse_failures(report: ServerReport, *, wanted: bool) -> list[str]:
    """Say in what way sparse attention is not on, if it is wanted."""
    if not wanted or report.sparse_attention:
        return []
    reason = report.dense_reason or (
        f"flash attention {'on' if report.flash_attention else 'off'},"
        f" unified KV cache {'on' if report.kv_unified else 'off'},"
        f" indexer cache {'made' if report.indexer else 'not made'}"
    )
    return [f"sparse attention is off ({reason})"]


def _tool_failures(ask: Callable[[], Any]) -> list[str]:
    try:
        answer = ask()
    except HeadError as error:
        return [f"the tool call failed: {error}"]
    try:
        return _call_failures(answer["choices"][0]["message"])
    except (LookupError, TypeError, AttributeError):
        return [f"the tool call was answered with {answer!r:.200}"]


def _ask(api: Api) -> Any:
    return api.post("/v1/chat/completions", TOOL_QUESTION, timeout=_TOOL_SECONDS)


def _watched(
    work: Callable[[], Any], watch: Callable[[], None], give_up: Callable[[], object]
) -> Any:
    """Do something that may wait long; if a part is lost meanwhile, give up on it."""
    over = Event()

    def look() -> None:
        while not over.wait(_WATCH_SECONDS):
            try:
                watch()
            except GgufClusterError:
                with contextlib.suppress(GgufClusterError):
                    give_up()
                return

    watcher = Thread(target=look, daemon=True)
    watcher.start()
    try:
        return work()
    finally:
        over.set()
        watcher.join()


def _call_failures(message: dict[str, Any]) -> list[str]:
    calls = message.get("tool_calls") or []
    if not calls:
        said = repr(message.get("content") or "")
        return [f"no tool call was parsed; the answer was {said:.200}"]
    function = calls[0]["function"]
    try:
        city = json.loads(function["arguments"]).get("city")
    except (ValueError, AttributeError):
        city = None
    if function["name"] == "get_weather" and isinstance(city, str):
        return []
    return [f"the tool call came out as {function['name']}({function['arguments']})"]
