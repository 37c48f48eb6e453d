"""A user's project, for the type checker only: `scripts/check` fails if our types change.

An ignored error that is no longer one is an error too, so the misspelled names prove that they are
found.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from ggufcluster import AsyncLlama, Cluster, Llama, Steps
from ggufcluster.workflows.events import Event


def main() -> str:
    """Use every public name as its documentation says, and some as it does not."""
    steps: Steps[Cluster] = Cluster.starting(["local"], model="m.gguf", ctx="max")
    for event in steps:
        assert_type(event, Event)
    with steps.result() as cluster:
        assert_type(cluster.status().healthy, bool)
        cluster.client().chat.completions.create(model="", messages=[])
    with Llama("m.gguf", workers=["local"], n_ctx=4096) as model:
        assert_type(model.tokenize(b"x"), list[int])
        model.create_chat_completion([], reasoning_effort="none", stream=True)
    assert_type(Llama.from_pretrained("a/b", "*.gguf", workers="local:2"), Llama)
    Llama(Path("m.gguf"), template=Path("t.jinja"), endpoints=["10.0.0.2:50052"]).close()
    Cluster.up(["local"], kv_tipe="f16")  # type: ignore[call-arg]
    Llama("m.gguf", workers=3)  # type: ignore[arg-type]
    return cluster.base_url


async def later() -> None:
    """Await what a model in this process computes."""
    async with await Cluster.up_async(["local"], model=Path("m.gguf")) as cluster:
        assert_type(cluster, Cluster)
    async with await AsyncLlama.load(Path("m.gguf"), workers=["local"]) as llama:
        assert_type(await llama.run(llama.model.n_ctx), int)
        await llama.embed(["x"])  # type: ignore[attr-defined]
