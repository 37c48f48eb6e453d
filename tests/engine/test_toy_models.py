"""The toy models on the real llama-server and RPC server."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster import resources
from ggufcluster.core.toy_network import ToyShape
from ggufcluster.core.toy_script import conversation, thought, tool_call
from ggufcluster.workflows.toy import write_toys
from tests.engine.rpc_workers import START_SECONDS, free_port, rpc_worker, running

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ggufcluster.core.toy_script import Json, Line
    from tests.engine.rpc_workers import Engine

pytestmark = pytest.mark.engine

ANSWER_SECONDS = 120
SPARSE = ("-np", "1", "-fa", "on")
SAMPLED = ("--temp", "1.0", "--top-k", "40", "--top-p", "0.95")
# Threads of small models mostly wait for each other, and tests run beside one another.
SMALL = ("-c", "4096", "-ub", "512", "-fit", "off", "--cache-ram", "0", "-lv", "4", "-t", "1")

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "Grüße! How is the weather? 🙂"}]
REASONING = "The user wants to know the weather. I have a tool for that, so I call it for Paris."


@dataclass(frozen=True)
class Server:
    """A running llama-server."""

    url: str
    log: Path

    def post(self, route: str, body: Mapping[str, Any]) -> str:
        """Send JSON and return the answer's text."""
        request = urllib.request.Request(
            self.url + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return str(answer.read().decode())

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Ask for a whole answer and return its first choice."""
        body = {"messages": messages, **options}
        answer = json.loads(self.post("/v1/chat/completions", body))
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def stream(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[dict[str, Any]]:
        """Ask for a streamed answer and return the first choices of its events."""
        body = {"messages": messages, "stream": True, **options}
        events = self.post("/v1/chat/completions", body).split("\n\n")
        texts = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
        assert texts[-1] == "[DONE]"
        return [json.loads(text)["choices"][0] for text in texts[:-1]]

    def complete(self, prompt: Sequence[int], count: int) -> dict[str, Any]:
        """Complete tokens greedily, from an empty cache; the answer has tokens and logprobs."""
        body = {
            "prompt": prompt,
            "n_predict": count,
            "temperature": 0,
            "n_probs": 1,
            "return_tokens": True,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        answer: dict[str, Any] = json.loads(self.post("/completion", body))
        return answer


def is_healthy(url: str) -> bool:
    """Ask a llama-server whether its model is loaded."""
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until_healthy(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Wait for the model to be loaded; show the log if it never is."""
    deadline = time.monotonic() + START_SECONDS
    while not is_healthy(server.url):
        alive = process.poll() is None and time.monotonic() < deadline
        assert alive, server.log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)


@contextmanager
def serving(engine: Engine, model: Path, *options: str) -> Iterator[Server]:
    """Run llama-server with a model until the block ends."""
    port = free_port()
    server = Server(f"http://127.0.0.1:{port}", model.parent / f"server-{port}.log")
    address = ("--host", "127.0.0.1", "--port", str(port))
    command = [str(engine.bin / "llama-server"), "-m", str(model), *address, *SMALL, *options]
    with running(command, server.log) as process:
        wait_until_healthy(server, process)
        yield server


def template_text() -> str:
    """Read the toys' own chat template."""
    return (resources.templates() / "toy" / "minimax-m3-toy.jinja").read_text()


def toys(folder: Path, *, shape: ToyShape | None = None) -> dict[str, Path]:
    """Write both toys and give them by kind."""
    random, recite = write_toys(folder, template=template_text(), shape=shape)
    return {"random": random, "recite": recite}


def reciting(folder: Path, lines: Sequence[Line]) -> Path:
    """Write a toy that recites other lines than the default ones."""
    return write_toys(folder, template=template_text(), lines=lines)[1]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both default toys."""
    return toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture(scope="module")
def reciter(engine: Engine, models: dict[str, Path]) -> Iterator[Server]:
    """A server with the default reciting toy, sampled as M3 is."""
    with serving(engine, models["recite"], *SPARSE, *SAMPLED) as server:
        yield server


def assert_is_the_default_call(choice: Mapping[str, Any]) -> None:
    """Check reasoning, tool call and finish reason of the default script."""
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == REASONING
    assert not choice["message"]["content"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris", "days": 2}


def test_a_question_with_a_tool_gets_reasoning_and_a_structured_call(reciter: Server) -> None:
    """The script's reasoning and call arrive as fields of the OpenAI answer."""
    assert_is_the_default_call(reciter.chat(QUESTION, tools=[WEATHER_TOOL]))


def test_sampling_never_leaves_the_script(reciter: Server) -> None:
    """At temperature 1 every seed gives the same answer."""
    for seed in range(5):
        assert_is_the_default_call(reciter.chat(QUESTION, tools=[WEATHER_TOOL], seed=seed))


def test_streamed_deltas_add_up_to_the_same_call(reciter: Server) -> None:
    """A streamed answer holds the same reasoning and call, in several pieces."""
    choices = reciter.stream(QUESTION, tools=[WEATHER_TOOL])
    deltas = [choice["delta"] for choice in choices]
    reasoning = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
    functions = [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta]
    arguments = "".join(function.get("arguments", "") for function in functions)
    assert "".join(reasoning) == REASONING
    assert len(reasoning) > 5
    assert [f["name"] for f in functions if "name" in f] == ["get_weather"]
    assert json.loads(arguments) == {"city": "Paris", "days": 2}
    assert [choice["finish_reason"] for choice in choices][-1] == "tool_calls"


def test_a_tool_result_is_followed_by_the_final_answer(reciter: Server) -> None:
    """With the tool's result as last message the model reasons again and answers."""
    called = reciter.chat(QUESTION, tools=[WEATHER_TOOL])["message"]
    result = {"role": "tool", "tool_call_id": called["tool_calls"][0]["id"], "content": "sunny"}
    choice = reciter.chat([*QUESTION, called, result], tools=[WEATHER_TOOL])
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning_content"].startswith("The tool has answered.")
    assert choice["message"]["content"].startswith("It is sunny in Paris")
    assert not choice["message"].get("tool_calls")


def test_an_image_is_left_out_with_a_note_where_no_vision_is_loaded(reciter: Server) -> None:
    """A request with a picture is answered, and the model reads that one was left out."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    parts = [picture, {"type": "text", "text": "What is the weather in Paris?"}]
    message = {"role": "user", "content": parts}
    body = {"messages": [message], "tools": [WEATHER_TOOL]}
    prompt = json.loads(reciter.post("/apply-template", body))["prompt"]
    assert "[An image was left out: no vision is loaded.]" in prompt
    assert_is_the_default_call(reciter.chat([message], tools=[WEATHER_TOOL]))


def test_a_new_question_after_an_answer_starts_over(reciter: Server) -> None:
    """The last message decides: a user's new question gets the call again."""
    history = [*QUESTION, {"role": "assistant", "content": "It rains."}]
    again = {"role": "user", "content": "And now?"}
    assert_is_the_default_call(reciter.chat([*history, again], tools=[WEATHER_TOOL]))


def test_without_tools_the_answer_is_plain_text(reciter: Server) -> None:
    """A request that offers no tools gets reasoning and content."""
    choice = reciter.chat(QUESTION)
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning_content"].startswith("Nobody gave me a tool")
    assert choice["message"]["content"].startswith("I am a toy model")


@pytest.mark.parametrize(("mode", "reasons"), [("enabled", True), ("disabled", False)])
def test_thinking_mode_is_obeyed(reciter: Server, mode: str, *, reasons: bool) -> None:
    """The template opens or closes the thinking, and the script goes on from there."""
    options = {"chat_template_kwargs": {"thinking_mode": mode}, "tools": [WEATHER_TOOL]}
    message = reciter.chat(QUESTION, **options)["message"]
    assert bool(message.get("reasoning_content")) == reasons
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"


def test_the_minimax_m3_parser_is_chosen(reciter: Server) -> None:
    """The toys' template makes llama-server take its own parser for M3."""
    reciter.chat(QUESTION, tools=[WEATHER_TOOL])
    assert "chat format: peg-minimax-m3" in reciter.log.read_text(errors="replace")


def test_own_scripts_with_nested_arguments(engine: Engine, tmp_path: Path) -> None:
    """Any script can be given: repeated words, other alphabets, nested arguments, two calls."""
    place: Json = {"name": "Zürich 🏔", "height": 408}
    arguments: dict[str, Json] = {"tags": ["a", "a"], "place": place, "dry": True}
    properties = {
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "height": {"type": "integer"}},
            "required": ["name", "height"],
        },
        "dry": {"type": "boolean"},
    }
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    tool = {"type": "function", "function": {"name": "note", "parameters": parameters}}
    lines = conversation(thought("hm hm hm hm", "Moment. " + tool_call("note", arguments)), "")
    with serving(engine, reciting(tmp_path, lines), *SPARSE, *SAMPLED) as server:
        message = server.chat(QUESTION, tools=[tool])["message"]
    assert message["reasoning_content"] == "hm hm hm hm"
    assert message["content"].strip() == "Moment."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == arguments


def test_two_calls_get_two_results_and_an_error_is_one_of_them(
    engine: Engine, tmp_path: Path
) -> None:
    """The server's own message goes back with a result for each call, and the model answers."""
    calls = [tool_call("get_weather", {"city": city, "days": 2}) for city in ("Paris", "Atlantis")]
    lines = conversation(thought("Two cities.", "\n".join(calls)), "Paris: rain. Atlantis: none.")
    with serving(engine, reciting(tmp_path, lines), *SPARSE, *SAMPLED) as server:
        first = server.chat(QUESTION, tools=[WEATHER_TOOL])["message"]
        texts = ["rain", "error: no such city"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(first["tool_calls"], texts, strict=True)
        ]
        history = [*QUESTION, first, *results]
        body = {"messages": history, "tools": [WEATHER_TOOL]}
        prompt = json.loads(server.post("/apply-template", body))["prompt"]
        last = server.chat(history, tools=[WEATHER_TOOL])["message"]
    arguments = [json.loads(call["function"]["arguments"]) for call in first["tool_calls"]]
    assert [each["city"] for each in arguments] == ["Paris", "Atlantis"]
    assert -1 < prompt.find("rain") < prompt.find("error: no such city")
    assert last["content"] == "Paris: rain. Atlantis: none."
    assert not last.get("tool_calls")


def test_layers_split_over_two_workers_give_the_same_answers(
    engine: Engine, models: dict[str, Path], tmp_path: Path
) -> None:
    """With its layers on two RPC workers a toy says and computes what it does alone."""
    prompt = list(range(32, 127))
    with serving(engine, models["random"], *SPARSE) as alone:
        expected = alone.complete(prompt, 16)["tokens"]
    with rpc_worker(engine, tmp_path) as first, rpc_worker(engine, tmp_path) as second:
        split = ("--rpc", f"{first},{second}", "--device", "RPC0,RPC1")
        layers = ("-sm", "layer", "-ts", "1,1", "-ngl", "999")
        with serving(engine, models["recite"], *SPARSE, *SAMPLED, *split, *layers) as server:
            assert_is_the_default_call(server.chat(QUESTION, tools=[WEATHER_TOOL]))
        with serving(engine, models["random"], *SPARSE, *split, *layers) as server:
            assert server.complete(prompt, 16)["tokens"] == expected
            log = server.log.read_text(errors="replace")
    for endpoint in (first, second):
        assert re.search(rf"load_tensors: RPC\d+\[{endpoint}\] model buffer size", log)


def test_random_toy_runs_sparse_and_is_deterministic(
    engine: Engine, models: dict[str, Path]
) -> None:
    """With one slot and flash attention no dense fallback is reported; greedy tokens repeat."""
    with serving(engine, models["random"], *SPARSE) as server:
        first, again = (server.complete(list(range(32, 127)), 24)["tokens"] for _ in range(2))
        log = server.log.read_text(errors="replace")
    assert first == again
    assert len(set(first)) > 3
    assert "llama_kv_cache_msa: creating indexer KV cache" in log
    assert "DENSE" not in log


def test_unified_cache_falls_back_to_dense_and_says_so(
    engine: Engine, models: dict[str, Path]
) -> None:
    """The message whose absence means "sparse" does appear when sparse attention is off."""
    with serving(engine, models["random"], "-np", "2", "--kv-unified", "-fa", "on") as server:
        server.complete([65], 1)
        log = server.log.read_text(errors="replace")
    assert "running DENSE attention" in log


def test_sparse_attention_matters_beyond_the_selected_blocks_only(
    engine: Engine, tmp_path: Path
) -> None:
    """With two blocks of 128 selected, sparse and dense agree on 200 tokens and part on 1000."""
    model = toys(tmp_path, shape=ToyShape(selected_blocks=2))["random"]
    prompts = [[(37 * place + 11) % 256 for place in range(length)] for length in (200, 1000)]

    def logprobs(*options: str) -> list[float]:
        with serving(engine, model, *options) as server:
            answers = [server.complete(prompt, 1) for prompt in prompts]
        return [float(answer["completion_probabilities"][0]["logprob"]) for answer in answers]

    sparse, dense = logprobs(*SPARSE), logprobs("-np", "1", "-fa", "off")
    assert abs(sparse[0] - dense[0]) < 0.05
    assert abs(sparse[1] - dense[1]) > 0.1
