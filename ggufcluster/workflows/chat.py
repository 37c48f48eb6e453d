"""Talk with a running server: questions, streamed answers, and calls of local functions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ggufcluster.core.chat_stream import (
    Pace,
    ServerFacts,
    facts_of,
    pace_of,
    prompt_progress,
    request,
)
from ggufcluster.core.conversation import Conversation
from ggufcluster.core.toolcall_answer import AnswerFormError, OpenAiMerge
from ggufcluster.errors import HeadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ggufcluster.adapters.http import StreamingApi
    from ggufcluster.adapters.tool_file import ToolResult
    from ggufcluster.core.toolcall_answer import Answer, AnswerCall

CHAT = "/v1/chat/completions"
# Most seconds between two pieces: a long prompt is silent until its first part is read.
_SILENCE = 1800.0
MOST_ROUNDS = 50
_CUT = "Error: the token limit cut this call off; it was not run."
_BROKEN_OFF = "Error: the user stopped this call while it ran."
_REFUSED = "Error: the user did not allow this call; it was not run."


@dataclass(frozen=True, slots=True)
class Reading:
    """The server reads the prompt: tokens that are read and that must be."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """The model calls a tool; `arguments` as it wrote them."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Returned:
    """A call has its result, which goes to the model."""

    id: str
    name: str
    text: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer is whole; after one with calls another one follows.

    Attributes:
        content: Its text.
        reasoning: What was thought before.
        calls: Number of its calls.
        finish: Why it ended, in OpenAI's words.
        pace: Its speed, and the context used.
    """

    content: str
    reasoning: str
    calls: int
    finish: str
    pace: Pace


@dataclass(frozen=True, slots=True)
class Stopped:
    """The user stopped the answer; `content` is kept in the conversation.

    `withdrawn` says that nothing was answered and that the question was taken back.
    """

    content: str
    withdrawn: bool
    pace: Pace


@dataclass(frozen=True, slots=True)
class Remarked:
    """Something the user should know."""

    text: str


ChatEvent = Reading | Thought | Said | Called | Returned | Answered | Stopped | Remarked
Turn = Generator[ChatEvent, None, None]


@dataclass(frozen=True, slots=True)
class Tools:
    """What the model may call.

    Attributes:
        schemas: What it is told of them, in OpenAI's form.
        run: Runs one by name with its arguments as JSON; raises nothing.
        allowed: Asks whether a call may run.
    """

    schemas: Sequence[Mapping[str, Any]]
    run: Callable[[str, str], ToolResult]
    allowed: Callable[[AnswerCall], bool]


@dataclass(slots=True)
class Chat:
    """A conversation with one server.

    A KeyboardInterrupt that reaches a turn stops the answer, not the chat: what came of it is kept.

    Attributes:
        api: The server.
        tools: What the model may call, None for nothing.
        options: Further fields of each request.
        conversation: What was said so far.
        facts: What is known of the server.
    """

    api: StreamingApi
    tools: Tools | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    conversation: Conversation = field(default_factory=Conversation)
    facts: ServerFacts = field(default_factory=ServerFacts)
    _told_blind: bool = False

    def connect(self) -> None:
        """Learn the context and whether the server sees images.

        Raises:
            HeadError: The server does not answer.
        """
        try:
            self.facts = facts_of(self.api.get("/props"))
        except HeadError:
            # A server of another kind has no such page; one that loads or is gone answers nothing.
            if self.api.health() != "ok":
                raise

    def resume(self, conversation: Conversation) -> None:
        """Go on with another conversation."""
        self.conversation = conversation
        self._told_blind = False

    def ask(self, text: str, images: Sequence[str] = ()) -> Turn:
        """Put a question; yield what comes back, up to the last answer.

        Raises:
            HeadError: The server refuses or breaks off. What was complete is kept; a question that
                got no answer at all is taken back.
        """
        self.conversation.ask(text, images)
        partial = _Partial()
        try:
            yield from self._blindness()
            yield from self._rounds(partial)
        except KeyboardInterrupt:
            yield self._stop(partial)
        except (HeadError, AnswerFormError) as error:
            self._stop(partial)
            raise error if isinstance(error, HeadError) else HeadError(str(error)) from None

    def _blindness(self) -> Iterator[ChatEvent]:
        if self.conversation.images() and not self.facts.vision and not self._told_blind:
            self._told_blind = True
            yield Remarked(
                "this server has no vision loaded: images are left out (llama-server loads it with"
                " --mmproj FILE)"
            )

    def _rounds(self, partial: _Partial) -> Iterator[ChatEvent]:
        for _ in range(MOST_ROUNDS):
            answer, pace = yield from self._answer(partial)
            self.conversation.answered(answer)
            yield Answered(answer.content, answer.reasoning, len(answer.calls), answer.finish, pace)
            if not answer.calls:
                return
            for call in answer.calls:
                yield from self._call(call, cut=answer.finish == "length")
            if answer.finish == "length":
                return
        yield Remarked(f"stopped after {MOST_ROUNDS} answers with calls in a row")

    def _answer(self, partial: _Partial) -> Generator[ChatEvent, None, tuple[Answer, Pace]]:
        schemas = self.tools.schemas if self.tools else ()
        messages = self.conversation.sendable(vision=self.facts.vision)
        body = request(messages, schemas, self.options)
        merge = OpenAiMerge()
        partial.answer, partial.after = merge.answer, len(self.conversation.messages)
        partial.pace = Pace(context=self.facts.context)
        events = self.api.stream(CHAT, body, timeout=_SILENCE)
        with closing(events):  # type: ignore[type-var] # a generator, whose end ends the answer
            for event in events:
                yield from _pieces(event, merge, partial)
        if not merge.answer.finish:
            raise HeadError("the answer ended in the middle: the connection was closed")
        return merge.answer, partial.pace

    def _call(self, call: AnswerCall, *, cut: bool) -> Iterator[ChatEvent]:
        yield Called(call.id, call.name, call.arguments)
        if cut:
            text, failed = _CUT, True
        elif self.tools is None:
            text, failed = f"Error: there is no tool {call.name!r}; none was offered", True
        elif not self.tools.allowed(call):
            text, failed = _REFUSED, True
        else:
            self.conversation.returned(call, _BROKEN_OFF)
            result = self.tools.run(call.name, call.arguments)
            text, failed = result.text, result.failed
        self.conversation.returned(call, text)
        yield Returned(call.id, call.name, text, failed)

    def _stop(self, partial: _Partial) -> Stopped:
        before = len(self.conversation.messages)
        # Once the whole answer is among the messages, nothing of it is left over.
        content = partial.answer.content if partial.answer and partial.after == before else ""
        self.conversation.broken_off(content)
        withdrawn = len(self.conversation.messages) < before
        return Stopped(content, withdrawn, partial.pace)


def _pieces(event: Any, merge: OpenAiMerge, partial: _Partial) -> list[ChatEvent]:
    """Take an event of the server in and return what it tells."""
    try:
        progress = prompt_progress(event)
        reasoning, content = merge.add(event)
        partial.pace = pace_of(event, partial.pace)
    except (LookupError, TypeError, AttributeError) as error:
        raise AnswerFormError(f"an answer of another form: {error!r:.100}") from error
    found: list[ChatEvent] = [Reading(*progress)] if progress else []
    found += [Thought(reasoning)] if reasoning else []
    return found + ([Said(content)] if content else [])


@dataclass(slots=True)
class _Partial:
    """The answer that is on its way, if any; `after` is the number of messages before it."""

    answer: Answer | None = None
    after: int = 0
    pace: Pace = field(default_factory=Pace)
