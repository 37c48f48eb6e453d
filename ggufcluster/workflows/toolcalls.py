"""Run the tool-call corpus end to end on a real llama-server with a reciting toy."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ggufcluster.core.toolcall_answer import (
    Answer,
    AnswerFormError,
    anthropic_answer,
    anthropic_stream,
    mismatches,
    openai_answer,
    openai_stream,
)
from ggufcluster.core.toolcall_case import Case, CaseError, parse_cases, parse_tools
from ggufcluster.core.toolcall_request import PATHS, Way, first_request, second_request, ways_of
from ggufcluster.core.toolcall_toy import corpus_model, token_limits
from ggufcluster.errors import HeadError
from ggufcluster.workflows.events import Finished, Progress, Started, Workflow
from ggufcluster.workflows.scratch_server import ScratchWorld, scratch_server
from ggufcluster.workflows.toy import publish_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ggufcluster.adapters.http import StreamingApi
    from ggufcluster.core.template_style import Style

_ANSWER_SECONDS = 120.0
# Each piece of a script must be its own: the fewer scripts a toy knows, the smaller its tokens.
_CASES_PER_TOY = 10
_READERS = {
    "openai": (openai_answer, openai_stream),
    "anthropic": (anthropic_answer, anthropic_stream),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case went one way; `failures` is empty if it went right."""

    case: Case
    style: Style
    way: Way
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """How many cases of a corpus went right in every way they were put."""

    style: Style
    right: int
    total: int


def read_corpus(folder: Path) -> tuple[Case, ...]:
    """Read every case under a folder, in the order of files and cases.

    Raises:
        CaseError: A file is malformed, or two cases share a name.
    """
    tools = parse_tools((folder / "tools.json").read_text(encoding="utf-8"))
    cases: dict[str, Case] = {}
    for path in sorted(folder.glob("*.toml")):
        for case in parse_cases(path.read_text(encoding="utf-8"), tools, file=path.name):
            if case.name in cases:
                raise CaseError(f"{path.name}: a case named {case.name} was there before")
            cases[case.name] = case
    return tuple(cases.values())


def run_corpus(
    outside: ScratchWorld,
    cases: Sequence[Case],
    *,
    template: str,
    style: Style,
    ways: Callable[[Case], Iterable[Way]] = ways_of,
) -> Workflow[tuple[Outcome, ...]]:
    """Put every case in every way and compare what comes back.

    Args:
        outside: This machine and the engine.
        cases: The corpus.
        template: The chat template's text, of the style.
        style: Decides how the toy writes its calls.
        ways: Which ways to put a case.

    Raises:
        HeadStartError: llama-server does not start.
    """
    label = f"Tool calls, {style.value} style"
    yield Started(label)
    outcomes: list[Outcome] = []
    for start in range(0, len(cases), _CASES_PER_TOY):
        some = cases[start : start + _CASES_PER_TOY]
        limits = token_limits(some, style)
        with tempfile.TemporaryDirectory(prefix="ggufcluster-") as folder:
            model = publish_model(corpus_model(template, some, style), Path(folder) / "toy.gguf")
            with scratch_server(outside, model) as api:
                for done, case in enumerate(some, start=start + 1):
                    outcomes += [
                        Outcome(case, style, way, _put(api, case, way, style, limits))
                        for way in ways(case)
                    ]
                    yield Progress(label, done, len(cases))
    found = score(outcomes, style)
    yield Finished(label, f"{found.right} of {found.total} cases right")
    return tuple(outcomes)


def score(outcomes: Iterable[Outcome], style: Style) -> Score:
    """Count the cases that went right in every way."""
    right: dict[str, bool] = {}
    for outcome in outcomes:
        if outcome.style is style:
            right[outcome.case.name] = right.get(outcome.case.name, True) and not outcome.failures
    return Score(style, sum(right.values()), len(right))


def _put(
    api: StreamingApi, case: Case, way: Way, style: Style, limits: Mapping[str, int]
) -> tuple[str, ...]:
    try:
        first = _ask(api, way, first_request(case, way, limit=limits.get(case.name)))
        failures = mismatches(case, first, style)
        if failures or not case.results:
            return failures
        second = _ask(api, way, second_request(case, way, first))
    except (HeadError, AnswerFormError) as error:
        return (str(error),)
    except (LookupError, TypeError, AttributeError) as error:
        return (f"an answer of another form: {error!r:.200}",)
    return tuple(f"after the results: {failure}" for failure in _answer_mismatches(case, second))


def _answer_mismatches(case: Case, answer: Answer) -> list[str]:
    failures = []
    if answer.content.strip() != case.answer.strip():
        failures.append(f"content is {answer.content!r:.200}, not {case.answer!r}")
    if answer.calls or answer.finish != "stop":
        failures.append(f"{len(answer.calls)} calls, finish {answer.finish!r}")
    return failures


def _ask(api: StreamingApi, way: Way, body: dict[str, object]) -> Answer:
    path = PATHS[way.dialect]
    read, merge = _READERS[way.dialect]
    if way.streamed:
        return merge(api.stream(path, body, timeout=_ANSWER_SECONDS))
    return read(api.post(path, body, timeout=_ANSWER_SECONDS))
