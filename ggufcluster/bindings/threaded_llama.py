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
from ggufcluster.bindings.saved_state import fitted
from ggufcluster.errors import ConfigError, ModelCallError

# Before llama_cpp is imported by anybody: it loads a library as it is imported.
ENGINE = process_engine()

import llama_cpp
from llama_cpp.llama_tokenizer import LlamaTokenizer

if TYPE_CHECKING:
    import threading
    from collections.abc import Generator, Iterable, Iterator, Sequence

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
    _turn: threading.RLock
    _changes: int
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

    def create_completion(self, *args: Any, **options: Any) -> Any:
        """Continue a text; see `llama_cpp.Llama.create_completion`.

        Calls of several threads wait for one another. A stream waits only while it computes: one
        that is left in the middle can go on as long as nothing else was computed meanwhile.

        Raises:
            ModelCallError: A grammar cannot be read, or another call came between two parts.
            WorkerLostError: A worker is lost.
        """
        self._engine.require()
        with self._turn:
            return super().create_completion(*args, **options)

    def generate(self, *args: Any, **options: Any) -> Any:
        """Yield tokens; raises `WorkerLostError` if a worker is lost."""
        self._engine.require()
        return self._tokens(super().generate(*args, **options))

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens, one ubatch at a time.

        Raises:
            ModelCallError: The context has no room for them, or the vocabulary lacks one.
            WorkerLostError: A worker is lost.
        """
        self._engine.require()
        self._require_room(tokens)
        self._changes += 1
        for start in range(0, max(1, len(tokens)), self.n_batch):
            self.check_stop()
            part = tokens[start : start + self.n_batch]
            more = start + self.n_batch < len(tokens) and not self._logits_all
            self._engine.call(partial(self._eval_unread if more else super().eval, part))

    def sample(self, *args: Any, **options: Any) -> int:
        """Sample the next token.

        Raises:
            ModelCallError: There are no logits: nothing was evaluated since a reset or a state.
            WorkerLostError: A worker is lost.
        """
        self._engine.require()
        self._require_logits(options.get("idx"))
        token: int = self._engine.call(partial(super().sample, *args, **options))
        if raised := vars(self).pop("_raised", None):
            raise raised
        return token

    def reset(self) -> None:
        """Forget the context."""
        self._changes += 1
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

        Raises:
            ModelCallError: A text has no tokens.
            WorkerLostError: A worker is lost.
        """
        one = partial(super().embed, normalize=normalize, truncate=truncate, return_count=True)
        texts = [input] if isinstance(input, str) else input
        found = []
        for text in texts:
            self.check_stop()
            self._require_tokens(text)
            found.append(self._engine.call(partial(one, text)))
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
        with self._turn:
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
        self._engine.require()
        with self._turn:
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
        """Take over a context that `save_state` copied, here or on another placement.

        Raises:
            ModelCallError: It is of another model, or too long. What was damaged leaves the model
                without context.
        """
        self._engine.require()
        rows, width = self.scores.shape
        whole = fitted(state, llama_cpp.LlamaState, rows=rows, width=width, context=self._n_ctx)
        self._changes += 1
        self._engine.call(partial(self._take_state, whole))

    def check_stop(self) -> None:
        """Raise `asyncio.CancelledError` if `AsyncLlama` gave up what is computed."""
        if self.stop_asked.is_set():
            raise CancelledError

    def _tokens(self, inner: Generator[int, Any, None]) -> Generator[int, Any, None]:
        """Yield the tokens of one generation, as long as it has the model for itself."""
        sent, seen, sampler = None, -1, None
        with contextlib.closing(inner):
            try:
                while True:
                    self._engine.require()
                    with self._turn:
                        if seen not in {-1, self._changes}:
                            raise ModelCallError("another call used the context meanwhile")
                        try:
                            token = inner.send(sent)
                        except StopIteration:
                            return
                        finally:
                            seen, sampler = self._changes, self._sampler
                    sent = yield token
            finally:
                if self._sampler is sampler:  # else it holds us, and binds later calls of `sample`
                    self._sampler = None

    def _require_room(self, tokens: Sequence[int]) -> None:
        total = self.n_tokens + len(tokens)
        if total > self._n_ctx:
            raise ModelCallError(f"{total:,} tokens do not fit its context of {self._n_ctx:,}")
        if len(tokens) and not 0 <= min(tokens) <= max(tokens) < self._n_vocab:
            reason = f"its vocabulary has tokens 0 to {self._n_vocab - 1:,}"
            raise ModelCallError(f"{reason}, not {min(tokens)} to {max(tokens)}")

    def _require_logits(self, place: int | None) -> None:
        """Refuse what the engine would end the program for."""
        if self._requires_eval or not self.n_tokens:
            raise ModelCallError("there are no logits to sample from: evaluate tokens first")
        behind = 1 if place is None else self.n_tokens - place
        known = self._batch.n_tokens() if self._logits_all else 1
        if not 1 <= behind <= known:
            raise ModelCallError(f"it kept no logits of token {place}")

    def _require_tokens(self, text: str) -> None:
        # llama_cpp writes before the beginning of its batch then.
        if not text.strip() and not self.tokenize(text.encode()):
            raise ModelCallError("a text without tokens has no embedding")

    def _take_state(self, state: llama_cpp.LlamaState) -> None:
        try:
            super().load_state(state)
        except (RuntimeError, ValueError) as error:
            self._ctx.kv_cache_seq_rm(-1, -1, -1)
            self.reset()
            raise ModelCallError(f"the state is not one of this model: {error}") from error

    def _guarded(self, processors: Iterable[Any], tokens: Any, scores: Any) -> Any:
        """Change logits; the engine calls this, and has no place for what Python raises."""
        try:
            for processor in processors:
                scores[:] = processor(tokens, scores)
        except BaseException as error:  # noqa: BLE001 - `sample` raises it
            self._raised = error
        return scores

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
        if processors := options.get("logits_processor"):
            options["logits_processor"] = [partial(self._guarded, processors)]
        if not isinstance(grammar, Answer):
            if grammar is not None:
                _require_grammar(self._model.vocab, grammar)
            return super()._init_sampler(*args, **options)
        sampler = super()._init_sampler(*args, **options | {"grammar": None})
        if made := grammar.sampler(self._model.vocab):
            _add_first(sampler, made)
        return sampler


def token_text(vocabulary: Any, token: int, special: bool) -> bytes:  # noqa: FBT001 - see TokenTexts
    """Return the text of a token, however long it is.

    Raises:
        ModelCallError: There is no such token.
    """
    if not 0 <= token < llama_cpp.llama_vocab_n_tokens(vocabulary):
        raise ModelCallError(f"its vocabulary has no token {token}")
    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        count: int = llama_cpp.llama_token_to_piece(vocabulary, token, buffer, size, 0, special)
        if count >= 0:
            return buffer.raw[:count]
        size = -count


def _require_grammar(vocabulary: Any, grammar: Any) -> None:
    """Refuse a grammar that the engine cannot read; llama_cpp would crash at its first token."""
    texts = (grammar._grammar.encode(), grammar._root.encode())  # noqa: SLF001 - it has no other
    made = llama_cpp.llama_sampler_init_grammar(vocabulary, *texts)
    if not made:
        raise ModelCallError("the engine cannot read the grammar, or it has no rule `root`")
    llama_cpp.llama_sampler_free(made)


def _add_first(sampler: Any, made: int) -> None:
    """Put a sampler before all others of a chain but those written in Python."""
    chain, place = sampler.sampler, len(sampler.custom_samplers)
    rest = range(place, llama_cpp.llama_sampler_chain_n(chain))
    moved = [llama_cpp.llama_sampler_chain_remove(chain, place) for _ in rest]
    for one in (ctypes.cast(made, ctypes.POINTER(llama_cpp.llama_sampler)), *moved):
        llama_cpp.llama_sampler_chain_add(chain, one)
