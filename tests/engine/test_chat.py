"""The chat against a real llama-server with a reciting toy."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.toy_script import conversation, thought, tool_call
from tests.cli.terminal import command, environment, terminal
from tests.engine.toy_server import toy_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ggufcluster.adapters.http import StreamingApi
    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

WORDS = 6000
STORY = "".join(f" word{number}" for number in range(WORDS)).strip()
LINES = conversation(
    thought("I have a tool for that.", tool_call("get_weather", {"city": "Paris", "days": 2})),
    thought("The tool has answered.", "It is sunny in Paris."),
    without_tools=thought("A long story is wanted.", STORY),
)
TOOLS = '''
from typing import Literal

def get_weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> dict:
    """Tell the weather.

    Args:
        city: Name of the city
        days: How many days from today
    """
    return {"city": city, "days": days + 1, "unit": unit}
'''


class Served:
    """A running server: where it is, and its API."""

    def __init__(self, root: str, api: StreamingApi) -> None:
        self.root = root
        self.api = api

    def until(self, condition: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        """Wait until the server's one slot is so."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            slot: dict[str, object] = self.api.get("/slots")[0]
            if condition(slot):
                return slot
            time.sleep(0.02)
        raise AssertionError("the slot did not become so")


@pytest.fixture(scope="module")
def served(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model calls a tool if it has one, and else tells a long story."""
    with toy_server(engine, tmp_path_factory.mktemp("chat"), LINES) as (root, api):
        yield Served(root, api)


def test_a_tool_loop_on_the_engine(served: Served, tmp_path: Path) -> None:
    """The model's call reaches the function, its result the model, and the answer stdout."""
    (tmp_path / "weather.py").write_text(TOOLS)
    words = ("chat", "--url", served.root, "--tools", "weather.py", "--allow-tools")
    done = subprocess.run(
        command(*words, "--json", "--save", "c.json", "What is the weather in Paris?"),
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(tmp_path),
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    called = next(event for event in events if event["event"] == "called")
    assert json.loads(called["arguments"]) == {"city": "Paris", "days": 2}
    returned = next(event for event in events if event["event"] == "returned")
    assert json.loads(returned["text"]) == {"city": "Paris", "days": 3, "unit": "C"}
    last = events[-1]
    assert last["content"].strip() == "It is sunny in Paris."
    assert last["reasoning"].strip() == "The tool has answered."
    assert last["pace"]["context"] == 16384
    assert 0 < last["pace"]["tokens"] < last["pace"]["used"] < 16384
    assert last["pace"]["tokens_per_second"] > 0
    roles = [
        message["role"] for message in json.loads((tmp_path / "c.json").read_text())["messages"]
    ]
    assert roles == ["user", "assistant", "tool", "assistant"]


def test_ctrl_c_stops_the_engine_in_the_middle(served: Served, tmp_path: Path) -> None:
    """The slot stops long before the end of the story, and the chat goes on with what came."""
    with terminal(tmp_path, "chat", "--url", served.root) as screen:
        screen.line("Tell me a story.")
        screen.expect("word0 word1")
        screen.stop()
        screen.expect("stopped; what came is kept")
        served.until(lambda slot: not slot["is_processing"])
        screen.line("/save c.json")
        screen.line("Go on.")
        screen.expect("word0 word1")
        screen.stop()
        screen.expect("stopped")
        screen.line("/exit")
        assert screen.leave() == 0
    served.until(lambda slot: not slot["is_processing"])
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    told = messages[1]["content"].strip()
    assert STORY.startswith(told)
    assert told.startswith("word0 word1")
    assert len(told) < len(STORY)
