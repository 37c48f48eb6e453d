"""Chat through `ggufcluster.Llama`: templates, reasoning, tool calls, streams, strict answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.template_style import Style
from ggufcluster.core.toolcall_toy import corpus_model
from ggufcluster.workflows.toolcalls import read_corpus
from ggufcluster.workflows.toy import publish_model
from tests.bindings.in_process import Programs

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

DATA = Path(__file__).parents[1] / "data"
# One of each kind.
NAMES = (
    *("json-answer", "json-answer-with-tools", "loop-two-calls", "cut-in-a-string"),
    *("nested-object", "thinking-before-a-call", "thinking-forced", "thinking-disabled-answer"),
    *("unicode", "text-after"),
)
CASES = """
from ggufcluster.core.template_style import Style
from ggufcluster.core.toolcall_answer import mismatches, openai_answer, openai_stream
from ggufcluster.core.toolcall_request import first_request, second_request, ways_of
from ggufcluster.core.toolcall_toy import token_limits
from ggufcluster.workflows.toolcalls import read_corpus

names = sys.argv[3].split()
cases = [case for case in read_corpus(Path(sys.argv[2])) if case.name in names]
limits = token_limits(cases, Style.NATIVE)

def put(model, body):
    answer = model.create_chat_completion(**body)
    return openai_stream(answer) if body["stream"] else openai_answer(answer)
"""


@pytest.fixture(scope="module")
def reciter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy that recites some cases of the corpus, in MiniMax-M3's own words."""
    cases = [case for case in read_corpus(DATA / "toolcalls") if case.name in NAMES]
    text = (DATA / "templates" / "m3-shape.jinja").read_text()
    assert len(cases) == len(NAMES)
    model = corpus_model(text, cases, Style.NATIVE)
    return publish_model(model, tmp_path_factory.mktemp("reciter") / "toy.gguf")


@pytest.fixture
def programs(tmp_path: Path, engine: Engine, reciter: Path) -> Programs:
    """Programs that use the reciter."""
    return Programs(tmp_path, engine, reciter)


def test_the_corpus_goes_through_a_model(programs: Programs) -> None:
    """Cases of each kind come out right over two workers, whole, streamed and required."""
    found = programs.run(
        CASES
        + """
wrong, ways = [], 0
with load("local:2", n_ctx=4096) as model:
    for case in cases:
        for way in ways_of(case):
            if way.dialect != "openai":
                continue
            ways += 1
            first = put(model, first_request(case, way, limit=limits.get(case.name)))
            failures = mismatches(case, first, Style.NATIVE)
            if case.results and not failures:
                second = put(model, second_request(case, way, first))
                if second.content.strip() != case.answer:
                    failures = (f"then {second.content!r}",)
            wrong += [f"{case.name}, {way}: {failure}" for failure in failures]
report(wrong=wrong, ways=ways)
""",
        str(DATA / "toolcalls"),
        " ".join(NAMES),
    )
    assert found["wrong"] == []
    assert found["ways"] > 2 * len(NAMES)
    assert found["stderr"] == ""


def test_wishes_reach_the_prompt_and_mistakes_are_named(programs: Programs) -> None:
    """Our own options shape the prompt; a request that cannot be served raises, the next is."""
    found = programs.run(
        """
        ask = [{"role": "user", "content": "Hello"}]
        ends = {}
        with load(n_ctx=1024) as model:
            real = model.tokenize
            def told(text, *arguments, **options):
                if options.get("add_bos"):
                    ends[name] = text.decode()[-16:]
                return real(text, *arguments, **options)
            model.tokenize = told
            wishes = {
                "plain": {},
                "effort": {"reasoning_effort": "none"},
                "thinking": {"enable_thinking": False},
                "high": {"reasoning_effort": "high"},
            }
            for name, wish in wishes.items():
                model.create_chat_completion(ask, max_tokens=1, **wish)
            name = "later"
            model.create_chat_completion(ask, max_tokens=1)
            chosen = {"type": "function", "function": {"name": "nowhere"}}
            errors = [
                error_of(model.create_chat_completion, ask, tools=[], tool_choice=chosen),
                error_of(model.create_chat_completion, [{"role": "user"}]),
            ]
            after = model.create_chat_completion(ask, max_tokens=1)["choices"][0]["message"]["role"]
        with load(n_ctx=1024, chat_format="chatml") as model:
            errors.append(error_of(model.create_chat_completion, ask, reasoning_effort="low"))
            model.create_chat_completion(ask, max_tokens=1)
        report(ends=ends, errors=errors, after=after)
        """
    )
    ends = found["ends"]
    assert ends["effort"] == ends["thinking"] != ends["plain"] == ends["later"]
    assert ends["effort"].endswith("</mm:think>")
    assert ends["high"].endswith("<mm:think>")
    kinds = [kind for kind, _ in found["errors"]]
    assert kinds == ["ChatRequestError", "ChatRequestError", "ConfigError"]
    assert "nowhere" in found["errors"][0][1]
    assert found["after"] == "assistant"
    assert found["stderr"] == ""


def test_a_schema_binds_any_model(tmp_path: Path, engine: Engine, toys: dict[str, Path]) -> None:
    """Even random weights, sampled wildly, give an answer of the schema; free text they do not."""
    found = Programs(tmp_path, engine, toys["random"]).run(
        """
        def said(**options):
            ask = [{"role": "user", "content": "Hello"}]
            wild = {"temperature": 1.5, "max_tokens": 64, "reasoning_effort": "none"}
            answer = model.create_chat_completion(ask, **wild, **options)
            return answer["choices"][0]["message"]["content"].strip()

        schema = {"name": "a", "schema": {"enum": ["yes", "no"]}}
        strict = {"type": "json_schema", "json_schema": schema}
        with load(n_ctx=1024) as model:
            report(free=said(), strict=[said(response_format=strict) for _ in range(3)])
        """
    )
    assert {*found["strict"]} <= {'"yes"', '"no"'}
    assert found["free"] not in {'"yes"', '"no"'}
    assert found["stderr"] == ""
