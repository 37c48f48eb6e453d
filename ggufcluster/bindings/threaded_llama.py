"""`llama_cpp.Llama` that computes on an engine thread. Importing this loads the engine."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from asyncio import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ggufcluster.adapters.chat_library import Answer
from ggufcluster.bindings.chat_handler import ChatHandler
from ggufcluster.bindings.chat_request import ChatOptions
from ggufcluster.bindings.process_engine import process_engine
from ggufcluster.errors import ConfigError

# Before llama_cpp is imported by anybody: it loads a library as it is imported.
ENGINE = process_engine()

import llama_cpp
from llama_cpp.llama_tokenizer import LlamaTokenizer

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator, Sequence

    from ggufcluster.adapters.chat_library import ChatTemplate
    from ggufcluster.bindings.engine_thread import EngineThread
    from ggufcluster.bindings.token_texts import TokenTexts

# It sends the whole process' output to nowhere while a model loads; the engine is quiet as it is.
for _module in ("llama_cpp.llama", "llama_cpp._internals"):
    vars(sys.modules[_module])["suppress_stdout_stderr"] = lambda **_: contextlib.nullcontext()


class ThreadedLlama(llama_cpp.Llama):
    """A `llama_cpp.Llama` of which a lost worker costs the model and not the interpreter.

    Attributes:
        stop_asked: Set from another thread, it ends what is computed at its next step.
    """

    stop_asked: threading.Event
    _engine: EngineThread
    _texts: TokenTexts
    _devices: Any
    _progress_callback: Any

    @property
    def model_params(self) -> Any:
        """Parameters with which the model was loaded; the planned devices are always among them."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        self._model_params = params
        params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        params.progress_callback = self._progress_callback

    @property
    def context_params(self) -> Any:
        """Parameters of the context: one sequence in a KV cache of its own."""
        return self._context_params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        params.n_seq_max, params.kv_unified = 1, False
        self._context_params = params

    def generate(self, *args: Any, **options: Any) -> Any:
        """Yield tokens; raises `WorkerLostError` if a worker is lost."""
        self._engine.require()
        return super().generate(*args, **options)

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens, one ubatch at a time; raises `WorkerLostError` if a worker is lost."""
        for start in range(0, max(1, len(tokens)), self.n_batch):
            self.check_stop()
            part = tokens[start : start + self.n_batch]
            more = start + self.n_batch < len(tokens) and not self._logits_all
            self._engine.call(partial(self._eval_unread if more else super().eval, part))

    def sample(self, *args: Any, **options: Any) -> int:
        """Sample the next token; raises `WorkerLostError` if a worker is lost."""
        token: int = self._engine.call(partial(super().sample, *args, **options))
        return token

    def reset(self) -> None:
        """Forget the context."""
        self._engine.call(super().reset)

    def embed(
        self,
        input: str | list[str],  # noqa: A002 - the name that llama_cpp gives it
        normalize: bool = False,  # noqa: FBT001, FBT002 - likewise
        truncate: bool = True,  # noqa: FBT001, FBT002
        return_count: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Embed one text or several, one at a time; needs ``embedding=True``.

        Returns:
            `n_embd` numbers for each text, or for each token of each text without pooling; with
            `return_count` also the number of tokens.
        """
        one = partial(super().embed, normalize=normalize, truncate=truncate, return_count=True)
        texts = [input] if isinstance(input, str) else input
        found = [self._engine.call(partial(one, text)) for text in texts]
        vectors: Any = [vector for vector, _count in found]
        vectors = vectors[0] if isinstance(input, str) else vectors
        return (vectors, sum(count for _, count in found)) if return_count else vectors

    def detokenize(
        self,
        tokens: list[int],
        prev_tokens: list[int] | None = None,
        special: bool = False,  # noqa: FBT001, FBT002 - as llama_cpp has it
    ) -> bytes:
        """Return the text of tokens."""
        self._engine.require()
        if not isinstance(self.tokenizer_, LlamaTokenizer):
            spelled: bytes = super().detokenize(tokens, prev_tokens, special)
            return spelled
        text = self._texts.join(tokens, special=special)
        spaced = text[:1] == b" " and tokens[0] == self.token_bos()
        return text[1:] if spaced else text

    @contextlib.contextmanager
    def spelling(self, tokens: Iterable[int]) -> Iterator[None]:
        """Have these control tokens spelled out in every text while the block runs."""
        plain, self._texts = self._texts, self._texts.spelling(tokens)
        try:
            yield
        finally:
            self._texts = plain

    def create_chat_completion(self, *args: Any, **options: Any) -> Any:
        """Answer in a conversation.

        Args:
            args: As of `llama_cpp.Llama`.
            options: Likewise, and those of `ChatOptions`.

        Returns:
            An answer in OpenAI's form, with ``reasoning_content`` and ``tool_calls``; with
            ``stream=True`` an iterator of its parts. Closing it ends the computation.

        Raises:
            ChatRequestError: The request is malformed, or names a tool that it does not offer.
            WorkerLostError: A worker is lost.
        """
        ours = {name: options.pop(name) for name in ChatOptions.__optional_keys__ & options.keys()}
        if isinstance(self.chat_handler, ChatHandler):
            self.chat_handler.options = cast("ChatOptions", ours)
        elif ours:
            raise ConfigError("needs the chat handler of ggufcluster", source=min(ours))
        return super().create_chat_completion(*args, **options)

    def prepare(self, template: ChatTemplate, body: dict[str, Any]) -> Answer:
        """Make the prompt of a chat completion request; see `create_chat_completion`."""
        return self._engine.call(partial(template.ask, body))

    def save_state(self) -> llama_cpp.LlamaState:
        """Copy the context, the KV cache of every worker included; any placement can load it."""
        return self._engine.call(super().save_state)

    def load_state(self, state: llama_cpp.LlamaState) -> None:
        """Take over a context that `save_state` copied."""
        self._engine.call(partial(super().load_state, state))

    def check_stop(self) -> None:
        """Raise `asyncio.CancelledError` if `AsyncLlama` gave up what is computed."""
        if self.stop_asked.is_set():
            raise CancelledError

    def _eval_unread(self, tokens: Sequence[int]) -> None:
        """Evaluate a part of a prompt; logits are not computed, as the next part follows."""
        past, count = self.n_tokens, len(tokens)
        self._requires_eval = True
        self._ctx.kv_cache_seq_rm(-1, past, -1)
        self._batch.set_batch(batch=tokens, n_past=past, logits_all=False)
        self._batch.batch.logits[count - 1] = False
        self._ctx.decode(self._batch)
        self.input_ids[past : past + count] = tokens
        self.n_tokens += count

    def _init_sampler(self, *args: Any, **options: Any) -> Any:
        grammar = options.get("grammar")
        if not isinstance(grammar, Answer):
            return super()._init_sampler(*args, **options)
        sampler = super()._init_sampler(*args, **options | {"grammar": None})
        if made := grammar.sampler(self._model.vocab):
            _add_first(sampler, made)
        return sampler


def token_text(vocabulary: Any, token: int, special: bool) -> bytes:  # noqa: FBT001 - see TokenTexts
    """Return the text of a token, however long it is."""
    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        count: int = llama_cpp.llama_token_to_piece(vocabulary, token, buffer, size, 0, special)
        if count >= 0:
            return buffer.raw[:count]
        size = -count


def _add_first(sampler: Any, made: int) -> None:
    """Put a sampler before all others of a chain but those written in Python."""
    chain, place = sampler.sampler, len(sampler.custom_samplers)
    rest = range(place, llama_cpp.llama_sampler_chain_n(chain))
    moved = [llama_cpp.llama_sampler_chain_remove(chain, place) for _ in rest]
    for one in (ctypes.cast(made, ctypes.POINTER(llama_cpp.llama_sampler)), *moved):
        llama_cpp.llama_sampler_chain_add(chain, one)
