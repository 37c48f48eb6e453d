"""`AsyncLlama`: calls that are awaited, wait for one another and can be given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.bindings.in_process import Programs

pytestmark = pytest.mark.engine


BEGINNING = """
import asyncio
from ggufcluster import AsyncLlama

QUESTION = [{"role": "user", "content": "What is the weather?"}]
ASK = {"temperature": 0, "max_tokens": 8}
PLACE = {"workers": ["local:2"], "n_ctx": 1024, "n_ubatch": 32}
FEW = {"n_threads": 1, "n_threads_batch": 1}

def text(answer):
    return answer["choices"][0]["message"]["content"]
"""


def test_calls_are_awaited_one_after_the_other(programs: Programs) -> None:
    """Calls at the same time and a stream give what one call alone gives; the loop stays free."""
    found = programs.run(
        BEGINNING
        + """
async def main():
    async with await AsyncLlama.load(TOY, **PLACE, **FEW) as llama:
        alone = text(await llama.create_chat_completion(QUESTION, **ASK))
        calls = [llama.create_chat_completion(QUESTION, **ASK) for _ in range(3)]
        together = [text(answer) for answer in await asyncio.gather(*calls)]
        parts = await llama.create_chat_completion(QUESTION, stream=True, **ASK)
        deltas = [part["choices"][0]["delta"] async for part in parts]
        streamed = "".join(delta.get("content", "") for delta in deltas)
        completion = await llama.create_completion("Paris", temperature=0, max_tokens=4)
        size = await llama.run(lambda: llama.model.n_ctx())
    report(
        alone=alone, together=together, streamed=streamed, size=size,
        completion=completion["choices"][0]["text"], left=workers(),
    )

asyncio.run(main())
"""
    )
    assert found["alone"]
    assert {*found["together"], found["streamed"]} == {found["alone"]}
    assert found["completion"]
    assert (found["size"], found["left"]) == (1024, {})
    assert found["stderr"] == ""


def test_what_is_given_up_stops_computing(programs: Programs) -> None:
    """Cancelled in a prompt or in an answer, or closed, it ends at once and can be used again."""
    found = programs.run(
        BEGINNING
        + """
def halt(model, tokens, loop):
    # Computes up to so many tokens, tells the loop and goes on when it is asked to stop.
    reached, real = asyncio.Event(), type(model).check_stop
    def check():
        if model.n_tokens >= tokens and not reached.is_set():
            loop.call_soon_threadsafe(reached.set)
            model.stop_asked.wait()
        real(model)
    model.check_stop = check
    return reached

async def given_up(llama, tokens, work):
    reached = halt(llama.model, tokens, asyncio.get_running_loop())
    task = asyncio.ensure_future(work)
    await reached.wait()
    task.cancel()
    ended = (await asyncio.gather(task, return_exceptions=True))[0]
    del llama.model.check_stop
    return [type(ended).__name__, llama.model.n_tokens]

async def main():
    async with await AsyncLlama.load(TOY, **PLACE, **FEW) as llama:
        before = text(await llama.create_chat_completion(QUESTION, **ASK))
        long = [10 + number % 200 for number in range(600)]
        prompt = await given_up(llama, 64, llama.create_completion(long, max_tokens=4))
        # Tokens without end: a completion ends with the model's own word for it.
        answer = await given_up(
            llama, 610, llama.run(lambda: greedy(llama.model, long, 300))
        )
        parts = await llama.create_chat_completion(QUESTION, stream=True, max_tokens=500)
        taken = [await anext(parts) for _ in range(3)]
        await parts.aclose()
        after = text(await llama.create_chat_completion(QUESTION, **ASK))
    report(prompt=prompt, answer=answer, same=before == after, taken=len(taken), left=workers())

asyncio.run(main())
"""
    )
    assert found["prompt"] == ["CancelledError", 64]
    assert found["answer"] == ["CancelledError", 610]
    assert found["same"] is True
    assert (found["taken"], found["left"]) == (3, {})
    assert found["stderr"] == ""


def test_a_load_that_is_cancelled_leaves_no_worker(programs: Programs) -> None:
    """Cancelled while workers start, loading ends them before it is over."""
    found = programs.run(
        BEGINNING
        + """
async def main():
    begun, loop = asyncio.Event(), asyncio.get_running_loop()
    def follow(event):
        if type(event).__name__ == "Finished" and "local" in event.label:
            loop.call_soon_threadsafe(begun.set)
    task = asyncio.ensure_future(AsyncLlama.load(TOY, on_event=follow, **PLACE, **FEW))
    await begun.wait()
    task.cancel()
    ended = (await asyncio.gather(task, return_exceptions=True))[0]
    report(ended=type(ended).__name__, left=workers())

asyncio.run(main())
"""
    )
    assert found["ended"] == "CancelledError"
    assert found["left"] == {}
    assert found["stderr"] == ""


def test_a_stream_that_is_left_holds_nobody_up(programs: Programs) -> None:
    """Its reader can make other calls and close the model; read on, the stream says so."""
    found = programs.run(
        BEGINNING
        + """
async def main():
    here = PLACE | {"workers": []}
    async with await AsyncLlama.load(TOY, embedding=True, **here, **FEW) as llama:
        alone = text(await llama.create_chat_completion(QUESTION, **ASK))
        left = await llama.create_completion("Paris", stream=True, max_tokens=500)
        await anext(left)
        after = text(await llama.create_chat_completion(QUESTION, **ASK))
        try:
            await anext(left)
        except Exception as error:
            told = type(error).__name__
        before = llama.model._changes  # each text is one
        texts = asyncio.ensure_future(llama.create_embedding(["word"] * 100_000))
        await asyncio.sleep(0.1)
        texts.cancel()
        given_up = (await asyncio.gather(texts, return_exceptions=True))[0]
        embedded = llama.model._changes - before
        last = await llama.create_completion("Paris", stream=True, max_tokens=500)
        await anext(last)
    report(same=alone == after, told=told, given_up=type(given_up).__name__, embedded=embedded)

asyncio.run(main())
"""
    )
    assert found["same"] is True
    assert found["told"] == "ModelCallError"
    assert found["given_up"] == "CancelledError"
    assert found["embedded"] < 100_000
    assert found["stderr"] == ""
