"""The corpus of tool calls, end to end on the real llama-server with a reciting toy."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster import resources
from ggufcluster.adapters.http import HttpApi
from ggufcluster.adapters.local import LocalRemote
from ggufcluster.adapters.ports import free_port
from ggufcluster.core.template_style import Style
from ggufcluster.core.toolcall_request import ALL_WAYS
from ggufcluster.workflows.choose_template import read_scores
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.scratch_server import ScratchWorld
from ggufcluster.workflows.templates import FoundTemplate, make_style
from ggufcluster.workflows.toolcalls import read_corpus, run_corpus, score

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

DATA = Path(__file__).parents[1] / "data"
CORPUS = read_corpus(DATA / "toolcalls")
KNOWN: dict[str, list[str]] = json.loads((DATA / "toolcalls" / "known-failures.json").read_text())
SHAPE = (DATA / "templates" / "m3-shape.jinja").read_text()


def world(engine: Engine) -> ScratchWorld:
    """This machine and the engine under test."""
    return ScratchWorld(LocalRemote(), engine, HttpApi, free_port, time.monotonic, time.sleep)


@pytest.mark.parametrize("style", Style, ids=lambda style: style.value)
def test_what_the_model_writes_is_what_the_client_gets(engine: Engine, style: Style) -> None:
    """Every case that is not a known failure goes right in every way it can be put."""
    cases = [case for case in CORPUS if case.name not in KNOWN[style.value]]
    template = make_style(FoundTemplate(SHAPE, "/m3.gguf"), style)
    outcomes = drain(run_corpus(world(engine), cases, template=template, style=style))
    wrong = [
        f"{outcome.case.name}, {outcome.way}: {'; '.join(outcome.failures)}"
        for outcome in outcomes
        if outcome.failures
    ]
    assert wrong == []
    assert score(outcomes, style).total == len(cases)
    assert {outcome.way for outcome in outcomes} == set(ALL_WAYS)


@pytest.mark.parametrize("style", Style, ids=lambda style: style.value)
def test_known_failures_are_cases(style: Style) -> None:
    """The list of known failures names cases of the corpus, each once."""
    names = KNOWN[style.value]
    assert sorted(set(names)) == names
    assert set(names) <= {case.name for case in CORPUS}


def test_the_scores_that_up_chooses_by_are_true() -> None:
    """The recorded score of a style is the corpus less its known failures."""
    right = {style.value: len(CORPUS) - len(KNOWN[style.value]) for style in Style}
    assert read_scores() == right


def test_what_hybrid_cannot_express_is_documented() -> None:
    """Every case that hybrid cannot express is named in the templates' documentation."""
    text = (resources.templates() / "README.md").read_text()
    cannot = [case.name for case in CORPUS if case.hybrid_cannot]
    assert cannot
    assert [name for name in cannot if f"`{name}`" not in text] == []
    assert set(cannot) <= set(KNOWN["hybrid"])
