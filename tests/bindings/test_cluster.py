"""The cluster as a Python object, and the examples, with the real engine and toys."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import ggufcluster
from ggufcluster import Cluster
from ggufcluster.bindings.cluster import _elsewhere
from ggufcluster.errors import ClusterUnhealthyError, ConfigError
from ggufcluster.workflows.events import Event, Finished, Note, Started
from tests.adapters.http.test_api import serving

if TYPE_CHECKING:
    from typing import Self

    from ggufcluster.core.engine import Engine
    from ggufcluster.workflows.events import Workflow

ROOT = Path(__file__).parents[2]
OPTIONS: dict[str, Any] = {"ctx": 2048, "ubatch": 256, "backend": "cpu"}


@pytest.fixture
def state(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder of its own and the shared engine cache, for this process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path(engine.folder).parents[2]))
    return tmp_path / "state" / "ggufcluster"


def example(name: str, *arguments: str) -> list[str]:
    """Run an example and return the lines that it printed."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        env={**os.environ, "PYTHONPATH": path, "GGUFCLUSTER_ENGINE_BACKEND": "cpu"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.engine
def test_a_cluster_comes_up_is_used_and_goes_down(
    state: Path,
    toys: dict[str, Path],
    free_port: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up, status, attach, a client and the examples; leaving the block ends it; nothing prints."""
    events: list[Event] = []
    up = {"model": toys["recite"], "port": free_port, **OPTIONS}
    with Cluster.up(["local:2"], on_event=events.append, **up) as cluster:
        again = Cluster.up(["local:2"], **up)
        found = [
            Cluster.attach(),
            Cluster.attach(cluster.base_url),
            Cluster.attach(again.record.id),
        ]
        with again:
            pass  # it did not start it: it leaves it running
        status = cluster.status()
        answer = cluster.client().chat.completions.create(
            model="", messages=[{"role": "user", "content": "Paris"}], max_tokens=8
        )
        chat = example("chat.py", "What is the weather?")
        loop = example("tool_loop.py")
        monkeypatch.setitem(sys.modules, "openai", None)  # as if it were not installed
        small = cluster.client().chat.completions.create(
            model="", messages=[{"role": "user", "content": "Paris"}], max_tokens=8
        )
        cases = state / "cases.jsonl"
        cases.write_text('{"prompt": "x", "expected": ""}\n{"prompt": "y", "expected": "%%"}\n')
        scores = example("batch_score.py", str(cases))
        with pytest.raises(ClusterUnhealthyError, match="no cluster 'other' is up"):
            Cluster.attach("other")

    assert status.healthy
    assert {one.record.id for one in (*found, again)} == {cluster.record.id}
    assert answer.choices[0].message.role == small.choices[0].message.role == "assistant"
    assert "".join(chat).strip()
    arguments = json.loads(loop[0].removeprefix("calls get_weather(").removesuffix(")"))
    assert arguments["city"] == "Paris"
    assert "sunny" in loop[-1]
    assert scores == ["right x", "wrong y", "1 of 2 right"]
    assert any(isinstance(event, Started) for event in events)
    assert isinstance(events[-1], Finished)
    assert not (state / "cluster.json").exists()
    assert cluster.down() is False
    with pytest.raises(ClusterUnhealthyError):
        Cluster.attach()
    assert capfd.readouterr() == ("", "")


@pytest.mark.engine
def test_giving_up_the_iterator_leaves_nothing(
    state: Path, toys: dict[str, Path], free_port: int
) -> None:
    """Events can be taken one by one; closed in the middle, everything that began is ended."""
    steps = Cluster.starting(["local:2"], model=toys["recite"], port=free_port, **OPTIONS)
    for event in steps:
        if isinstance(event, Finished) and event.label == "Starting local-1":
            break
    assert list((state / "run").glob("*/*/pid"))
    steps.close()
    assert not list((state / "run").glob("*/*/pid"))
    assert not (state / "cluster.json").exists()


@pytest.mark.engine
def test_langchain_example(state: Path, toys: dict[str, Path], free_port: int) -> None:
    """LangChain talks with a cluster that has a key: calls come parsed, results are taken."""
    if find_spec("langchain_openai") is None:
        pytest.skip("the extra `examples` is not installed; .ci/run does it")
    keys = state.parent.parent / "keys"
    keys.write_text("a-key-of-a-test\n")
    up = {"model": toys["recite"], "port": free_port, "api_key_file": keys, **OPTIONS}
    with Cluster.up(["local"], **up) as cluster:
        assert cluster.api_key == "a-key-of-a-test"
        lines = example("langchain_agent.py")
    assert lines[0].startswith("calls get_weather({'city': 'Paris'")
    assert "sunny" in lines[-1]


@pytest.mark.engine
def test_logits_example(state: Path, toys: dict[str, Path]) -> None:
    """The example with a model in its own process prints the likeliest tokens."""
    lines = example("logits.py", str(toys["random"]), "local:2")
    shares = [float(line.split("%")[0]) for line in lines]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)


def test_a_head_elsewhere_is_asked_and_not_ended() -> None:
    """A head known by its URL only has a status and a client, and is not ours to end."""
    with serving(body={"data": []}) as server:
        cluster = Cluster.attach(f"{server.root}/v1/", api_key="k")
        assert cluster.api_key == "k"
        status = cluster.status()
        models = cluster.client(timeout=5).models.list()
        with pytest.raises(ConfigError, match="only the machine that started it"):
            cluster.down()
        with cluster:
            pass
    assert (status.healthy, status.head) == (True, "ok")
    assert models.data == []
    assert all(key == "Bearer k" for *_, key in server.seen)
    assert Cluster.attach(server.root).status().problems == ("the head does not answer",)


def test_importing_the_package_loads_nothing_heavy() -> None:
    """`import ggufcluster` brings no other package with it, and knows its names."""
    program = (
        "import sys; before = set(sys.modules); import ggufcluster; "
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
        "; assert {'Cluster', 'Llama', 'Steps'} <= set(dir(ggufcluster))"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    heavy = {"httpx", "paramiko", "numpy", "llama_cpp", "asyncio", "rich", "typer"}
    assert "'ggufcluster'" in done.stdout
    assert not any(f"'{name}'" in done.stdout for name in heavy)


class Slow(Cluster):
    """A cluster whose start takes a moment, and says what became of it."""

    said: ClassVar[list[str]] = []

    @classmethod
    def _bring_up(cls, flags: dict[str, object], extra: tuple[str, ...]) -> Workflow[Self]:
        try:
            for number in range(int(str(flags["ctx"]))):
                yield Note(str(number))
                time.sleep(0.01)
        except BaseException as error:
            cls.said.append(f"undone by {type(error).__name__}")
            raise
        return cls(_elsewhere("http://127.0.0.1:1"), started=True)


def test_up_can_be_awaited() -> None:
    """The start goes on in a thread and calls back; the loop is free meanwhile."""

    async def work() -> tuple[str, int]:
        events: list[Event] = []
        free = asyncio.create_task(asyncio.sleep(0, "free"))
        cluster = await Slow.up_async(ctx=5, on_event=events.append)
        assert cluster.base_url.endswith("/v1")
        return await free, len(events)

    assert asyncio.run(work()) == ("free", 5)


def test_an_awaited_block_takes_down_what_it_started() -> None:
    """Leaving it ends a cluster that came up for it, and not one that ran before."""
    ended: list[bool] = []

    class Ending(Slow):
        def down(self, *, on_event: object = None) -> bool:
            ended.append(self._started and on_event is None)
            return True

    async def work() -> None:
        async with await Ending.up_async(ctx=2) as cluster:
            assert ended == []
        cluster._started = False
        async with cluster:
            pass

    asyncio.run(work())
    assert ended == [True]


def test_a_cancelled_up_undoes_what_it_began() -> None:
    """Cancelling waits until the work is undone; the task then ends cancelled."""
    Slow.said.clear()

    async def work() -> bool:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()
        tell = partial(loop.call_soon_threadsafe, begun.set)
        task = asyncio.create_task(Slow.up_async(ctx=200_000, on_event=lambda _event: tell()))
        await begun.wait()
        task.cancel()
        ended = await asyncio.gather(task, return_exceptions=True)
        return isinstance(ended[0], asyncio.CancelledError)

    assert asyncio.run(work()) is True
    assert Slow.said == ["undone by GeneratorExit"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy names hide no typing errors."""
    with pytest.raises(AttributeError, match="Klaster"):
        _ = ggufcluster.Klaster


def test_the_package_says_that_it_is_typed() -> None:
    """Type checkers of users take our types; `typed_user.py` is what they find with them."""
    assert (Path(ggufcluster.__file__).parent / "py.typed").is_file()
