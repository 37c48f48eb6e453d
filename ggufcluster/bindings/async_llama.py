"""A model in this process for programs that await. Importing this loads the engine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ggufcluster.bindings.llama import Llama
from ggufcluster.bindings.steps import begin_in_thread
from ggufcluster.errors import ModelCallError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from os import PathLike

    from ggufcluster.workflows.events import Event

Result = TypeVar("Result")


class _Stream:
    """A stream that has its turn.

    Attributes:
        reader: The task that took the last part, while none is computed.
    """

    reader: asyncio.Task[Any] | None = None


class AsyncLlama:
    """A `Llama` whose calls are awaited; they wait for one another.

    A call that is cancelled, or a stream that is closed, ends the computation at its next step, of
    a long prompt at the next ubatch, and only then ends itself: the model can be used at once.
    Close a stream that you leave: others wait for it. Only the task that reads it does not; if that
    makes another call, the stream is over and says so.

    Attributes:
        model: The model; while a call is awaited it must be left alone.
    """

    def __init__(self, model: Llama) -> None:
        self.model = model
        self._turn = asyncio.Lock()
        self._stream: _Stream | None = None

    @classmethod
    async def load(
        cls,
        model_path: str | PathLike[str],
        *,
        on_event: Callable[[Event], object] | None = None,
        **options: Any,
    ) -> Self:
        """Load a model in a thread; cancelled, it ends the workers that it has started.

        Args:
            model_path: GGUF file, or the first shard of a set.
            on_event: Called with each event of the start, in that thread.
            options: Any argument of `Llama`.
        """

        def begin(follow: Callable[[Event], object]) -> Llama:
            return Llama(model_path, on_event=follow, **options)

        return cls(await begin_in_thread(begin, on_event=on_event, undo=Llama.close))

    async def create_chat_completion(self, messages: list[Any], **options: Any) -> Any:
        """Answer in a conversation; see `Llama.create_chat_completion`.

        Returns:
            The answer, or with ``stream=True`` an asynchronous iterator of its parts.
        """
        start = partial(self.model.create_chat_completion, messages, **options)
        return await self._answer(start, stream=bool(options.get("stream")))

    async def create_completion(self, prompt: str | list[int], **options: Any) -> Any:
        """Continue a text; see `llama_cpp.Llama.create_completion`.

        Returns:
            The completion, or with ``stream=True`` an asynchronous iterator of its parts.
        """
        start: Callable[[], Any] = partial(self.model.create_completion, prompt, **options)
        return await self._answer(start, stream=bool(options.get("stream")))

    async def create_embedding(self, texts: str | list[str]) -> Any:
        """Embed texts; see `llama_cpp.Llama.create_embedding`."""
        return await self.run(partial(self.model.create_embedding, texts))

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run anything that uses the model, in a thread and when it is its turn."""
        self._pass_by()
        async with self._turn:
            return await self._step(work)

    async def close(self) -> None:
        """Free the model and end its workers, after what is computed now."""
        await self.run(self.model.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _answer(self, start: Callable[[], Any], *, stream: bool) -> Any:
        return self._parts(start) if stream else await self.run(start)

    async def _parts(self, start: Callable[[], Iterator[Any]]) -> AsyncGenerator[Any, None]:
        self._pass_by()
        await self._turn.acquire()
        stream = self._stream = _Stream()
        try:
            parts: Any = await self._step(start)
            try:
                while (part := await self._step(partial(next, parts, None))) is not None:
                    stream.reader = asyncio.current_task()
                    yield part
                    stream.reader = None
                    if self._stream is not stream:
                        raise ModelCallError("the reader of a stream made another call meanwhile")
            finally:
                await self._step(parts.close)
        finally:
            if self._stream is stream:
                self._leave()

    def _pass_by(self) -> None:
        """End the stream that nobody will read on: its reader is here, or has ended."""
        reader = self._stream and self._stream.reader
        if reader and (reader is asyncio.current_task() or reader.done()):
            self._leave()

    def _leave(self) -> None:
        self._stream = None
        self._turn.release()

    async def _step(self, work: Callable[[], Result]) -> Result:
        """Run one piece of work in a thread; cancelled, tell it to stop and wait until it has."""
        working = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            self.model.stop_asked.set()
            while not working.done():  # being cancelled again changes nothing
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({working})
            self.model.stop_asked.clear()
            if not working.cancelled():
                working.exception()  # else the loop complains that nobody looked
            raise
