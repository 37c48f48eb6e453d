"""What llama-server makes of a chat request and of the model's text, inside this process.

The functions are the overlay's `ggufcluster-chat.h`; behind them are llama-server's own, so that a
model in this process and one behind the head read tool calls alike.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from ggufcluster.errors import ChatRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAME = "libllama-server-impl.so"
_POINTER = ctypes.c_void_p
_PLACE = ctypes.POINTER(_POINTER)
# Name, result and arguments of each function; texts that come back are pointers, to be freed.
_FUNCTIONS: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("ggufcluster_chat_open", _POINTER, (_POINTER, ctypes.c_char_p, _PLACE)),
    ("ggufcluster_chat_close", None, (_POINTER,)),
    ("ggufcluster_chat_ask", _POINTER, (_POINTER, ctypes.c_char_p, _PLACE)),
    ("ggufcluster_answer_grammar", _POINTER, (_POINTER, _POINTER, _PLACE)),
    (
        "ggufcluster_answer_read",
        _POINTER,
        (_POINTER, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int),
    ),
    ("ggufcluster_answer_close", None, (_POINTER,)),
    ("ggufcluster_chat_free", None, (_POINTER,)),
)


class AnswerState(IntEnum):
    """How a text stands: more comes, the model has ended it, the limit of tokens has cut it."""

    GOES_ON = 0
    ENDED = 1
    CUT = 2


class ChatLibrary:
    """The library that llama-server is made of.

    Args:
        folder: Folder of the engine's libraries.
    """

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(str(folder / _NAME))
        for name, result, arguments in _FUNCTIONS:
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments

    def open(self, template: str, *, model: int | None = None) -> ChatTemplate:
        """Read a chat template.

        Args:
            template: Its text; an empty one takes the model's own.
            model: Handle of the model, whose special tokens the template may ask for.

        Raises:
            ChatRequestError: The engine cannot read the template.
        """
        error = _POINTER()
        opened = self._library.ggufcluster_chat_open(model, template.encode(), error)
        if not opened:
            self.taken(error.value)
        return ChatTemplate(self, opened)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the interface."""
        return getattr(self._library, name)(*arguments)

    def taken(self, text: int | None) -> dict[str, Any]:
        """Take over a text that came back; raises `ChatRequestError` if it tells of one."""
        assert text is not None
        try:
            found: dict[str, Any] = json.loads(ctypes.string_at(text))
        finally:
            self.call("ggufcluster_chat_free", text)
        if "error" in found:
            raise ChatRequestError(str(found["error"]))
        return found


class ChatTemplate:
    """A template that is ready for requests."""

    def __init__(self, library: ChatLibrary, handle: int) -> None:
        self._library = library
        self._handle = handle
        weakref.finalize(self, library.call, "ggufcluster_chat_close", handle)

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """Take a chat completion request in OpenAI's form.

        Raises:
            ChatRequestError: It asks for what cannot be, or is malformed.
        """
        handle = _POINTER()
        try:
            text = json.dumps(body).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatRequestError(str(error)) from error
        found = self._library.call("ggufcluster_chat_ask", self._handle, text, handle)
        return Answer(self._library, self._library.taken(found), handle.value)


class Answer:
    """An answer that a model is about to write.

    Attributes:
        asked: llama-server's parameters of the request: ``prompt``, ``stop``, ``preserved_tokens``
            and others.
    """

    def __init__(self, library: ChatLibrary, asked: dict[str, Any], handle: int | None) -> None:
        self.asked = asked
        self._library = library
        self._handle = handle
        self._text = self._given = ""
        weakref.finalize(self, library.call, "ggufcluster_answer_close", handle)

    def sampler(self, vocabulary: int) -> int | None:
        """Make a sampler that keeps the model to what is required; None if nothing is.

        It belongs to the caller.

        Args:
            vocabulary: Handle of the model's vocabulary.

        Raises:
            ChatRequestError: The engine cannot make a grammar of what was asked for.
        """
        error = _POINTER()
        made: int | None = self._library.call(
            "ggufcluster_answer_grammar", self._handle, vocabulary, error
        )
        if error.value:
            self._library.taken(error.value)
        return made

    def read(self, text: str, state: AnswerState) -> dict[str, Any]:
        """Read on.

        Args:
            text: What was written since the last time.
            state: Whether more comes.

        Returns:
            ``deltas``, each in the form of a streamed answer's; at the end also ``message``.

        Raises:
            ChatRequestError: The text is not in the form that the template asks for.
        """
        self._text += text
        written = text.encode()
        found = self._library.call(
            "ggufcluster_answer_read", self._handle, written, len(written), state
        )
        read = self._library.taken(found)
        self._given += "".join(delta.get("content", "") for delta in read["deltas"])
        if "message" in read:
            read["message"]["role"] = "assistant"  # an empty one has none
        return read

    def give_up(self) -> dict[str, Any]:
        """Return the end of an answer that cannot be read, in the form of `read`.

        The text comes back as it was written, without what of it was given before.
        """
        rest = self._text.removeprefix(self._given)
        message = {"role": "assistant", "content": self._text}
        return {"deltas": [{"content": rest}] if rest else [], "message": message}
