"""Try a live server: one call, two calls, a loop, a strict answer, a long prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core import smoke as asked
from ggufcluster.core.conversation import said
from ggufcluster.core.toolcall_answer import AnswerFormError, openai_answer, openai_stream
from ggufcluster.errors import HeadError
from ggufcluster.workflows.events import Progress, Started, Workflow

if TYPE_CHECKING:
    from collections.abc import Callable

    from ggufcluster.adapters.http import StreamingApi
    from ggufcluster.core.toolcall_answer import Answer

_CHAT = "/v1/chat/completions"
_SECONDS = 900.0
_MOST_TURNS = 4
_LONG_TOKENS = 8192
_SHORTEST = 256
_SAMPLE_LINES = 20


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """One check; `failure` is empty if it passed."""

    name: str
    seconds: float
    failure: str


class _FailedError(Exception):
    """A check did not pass; the message says in what."""


def smoke(api: StreamingApi, *, clock: Callable[[], float]) -> Workflow[tuple[SmokeResult, ...]]:
    """Run every check and return how each went; a check that fails does not end the others.

    Raises:
        HeadError: The server does not answer at all.
    """
    label = "Trying the server"
    yield Started(label)
    context = _context(api)
    found: list[SmokeResult] = []
    checks: tuple[tuple[str, Callable[[], None]], ...] = (
        ("one call", lambda: _one_call(api)),
        ("one call, streamed", lambda: _one_call(api, streamed=True)),
        ("two calls", lambda: _two_calls(api)),
        ("a loop", lambda: _loop(api)),
        ("a JSON answer", lambda: _json_answer(api)),
        ("a long prompt", lambda: _long_prompt(api, context)),
    )
    for name, check in checks:
        start = clock()
        failure = _outcome(check)
        found.append(SmokeResult(name, clock() - start, failure))
        yield Progress(label, len(found), len(checks))
    return tuple(found)


def _outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except (_FailedError, HeadError, AnswerFormError, ValueError) as error:
        return str(error)
    except (LookupError, TypeError, AttributeError) as error:
        return f"an answer of another form: {error!r:.100}"
    return ""


def _context(api: StreamingApi) -> int:
    try:
        return int(api.get("/props")["default_generation_settings"]["n_ctx"])
    except (LookupError, TypeError, ValueError):
        return 4096


def _ask(api: StreamingApi, body: dict[str, object]) -> Answer:
    answer = openai_answer(api.post(_CHAT, body, timeout=_SECONDS))
    if mark := asked.leaked(answer):
        raise _FailedError(f"{mark!r} was left in the text: {answer.content[:80]!r}")
    return answer


def _one_call(api: StreamingApi, *, streamed: bool = False) -> None:
    question = [asked.user("What is the weather in Paris? Use the tool.")]
    body = asked.request(question, tools=[asked.WEATHER])
    if streamed:
        answer = openai_stream(api.stream(_CHAT, {**body, "stream": True}, timeout=_SECONDS))
    else:
        answer = _ask(api, body)
    found = asked.cities(answer)
    if not any("paris" in city for city in found):
        raise _FailedError(f"calls for {found or 'nothing'}; the text was {answer.content[:80]!r}")


def _two_calls(api: StreamingApi) -> None:
    """Both cities must be asked for, at once or one after the other."""
    messages = [asked.user("What is the weather in Oslo and in Rome? Use the tool for each.")]
    wanted = {"oslo", "rome"}
    for _ in range(_MOST_TURNS):
        answer = _ask(api, asked.request(messages, tools=[asked.WEATHER]))
        found = asked.cities(answer)
        wanted -= {city for city in wanted if any(city in name for name in found)}
        if not wanted:
            return
        if not found:
            break
        messages += [said(answer), *asked.results(answer, "sunny, 20 degrees")]
    raise _FailedError(f"no call for {' and '.join(sorted(wanted))}")


def _loop(api: StreamingApi) -> None:
    messages = [asked.user("What is the weather in Paris? Use the tool, then tell me.")]
    for _ in range(_MOST_TURNS):
        answer = _ask(api, asked.request(messages, tools=[asked.WEATHER]))
        if not answer.calls:
            break
        asked.cities(answer)
        messages += [said(answer), *asked.results(answer, "sunny, 23 degrees")]
    if len(messages) == 1:
        raise _FailedError("the tool was not called")
    if answer.calls or not answer.content.strip():
        raise _FailedError("no answer followed the result")


def _json_answer(api: StreamingApi) -> None:
    strict = {"name": "answer", "strict": True, "schema": asked.SCHEMA}
    form = {"type": "json_schema", "json_schema": strict}
    question = [asked.user("What is the capital of France? Answer in JSON.")]
    answer = _ask(api, asked.request(question, response_format=form))
    if not asked.is_asked_for(answer):
        raise _FailedError(f"the answer was {answer.content[:80]!r}")


def _long_prompt(api: StreamingApi, context: int) -> None:
    tokens = min(_LONG_TOKENS, context - asked.MOST_TOKENS)
    if tokens < _SHORTEST:
        raise _FailedError(f"a context of {context} tokens has no room for one")
    sample = "\n".join(asked.filler(_SAMPLE_LINES))
    counted = api.post("/tokenize", {"content": sample}, timeout=_SECONDS)["tokens"]
    lines = tokens * _SAMPLE_LINES // len(counted)
    answer = _ask(api, asked.request([asked.user(asked.long_prompt(lines))]))
    if asked.NEEDLE not in answer.content:
        raise _FailedError(f"the answer was {answer.content[:80]!r}")
