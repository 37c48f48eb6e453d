"""The messages of a chat, kept such that a server takes them again at any moment.

Every call in them has a result, and the arguments of every call are a JSON object.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ggufcluster.core.toolcall_answer import Answer, AnswerCall

FORMAT = "ggufcluster chat 1"
NOT_RUN = "Error: the user stopped this call; it was not run."
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_SYSTEM = ("system", "developer")
_NO_VISION = "[An image was here; the model cannot see it.]"


class ConversationFormError(ValueError):
    """A file holds no conversation."""


def said(answer: Answer) -> dict[str, Any]:
    """Give an answer back as a message of the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return message


class Conversation:
    """What was said, by whom, in OpenAI's form.

    Attributes:
        system: System message, empty for none.
        messages: All others.
    """

    def __init__(self, *, system: str = "", messages: Iterable[dict[str, Any]] = ()) -> None:
        self.system = system
        self.messages = list(messages)

    def ask(self, text: str, images: Sequence[str] = ()) -> None:
        """Add a question, with images as `data:` addresses if there are any."""
        content: Any = text
        if images:
            parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
            content = [{"type": "text", "text": text}, *parts]
        self.messages.append({"role": "user", "content": content})

    def answered(self, answer: Answer) -> None:
        """Add an answer; each of its calls gets a result at once, to be replaced by the real one.

        A call whose arguments are no JSON object is kept without them: servers read the arguments
        of past calls and would refuse every further request.
        """
        number = len(self.messages)
        for index, call in enumerate(answer.calls):
            call.id = call.id or f"call_{number}_{index}"
        message = said(answer)
        for call in message.get("tool_calls", ()):
            function = call["function"]
            if arguments_of(function["arguments"]) is None:
                function["arguments"] = "{}"
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": NOT_RUN} for call in answer.calls
        ]
        self.messages += [message, *results]

    def returned(self, call: AnswerCall, text: str) -> None:
        """Put in the result of a call of the last answer."""
        for message in reversed(self.messages):
            if message.get("tool_call_id") == call.id:
                message["content"] = text
                return
        raise ValueError(f"no call {call.id!r} was made")

    def broken_off(self, content: str) -> None:
        """Keep what is left of a turn that was stopped; `content` came of its last answer.

        A question to which nothing was said is taken back. Reasoning alone is not kept.
        """
        if content.strip():
            self.messages.append({"role": "assistant", "content": content})
        elif self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    def undo(self) -> str | None:
        """Take back the last question and all that followed; return its text, None if none."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index]["role"] == "user":
                text = text_of(self.messages[index])
                del self.messages[index:]
                return text
        return None

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages.clear()

    def sendable(self, *, vision: bool) -> list[dict[str, Any]]:
        """Return all messages for a server, without images where it cannot see them."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        messages = self.messages if vision else [_blind(message) for message in self.messages]
        text = json.dumps([*system, *messages], ensure_ascii=False)
        # Halves of letters, which come from odd bytes on stdin, have no form in UTF-8.
        copies: list[dict[str, Any]] = json.loads(text.encode(errors="replace"))
        return copies

    def images(self) -> int:
        """Count the images."""
        return sum(part.get("type") == "image_url" for m in self.messages for part in _parts(m))


def arguments_of(text: str) -> dict[str, Any] | None:
    """Read a call's arguments, None if they are no JSON object; no arguments are an empty one."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, without its images."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")
    return content or ""


def to_json(conversation: Conversation) -> bytes:
    """Serialise a conversation."""
    messages = conversation.sendable(vision=True)
    value = {"format": FORMAT, "messages": messages}
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def from_json(data: bytes) -> Conversation:
    """Read a saved conversation, or a plain list of messages of OpenAI's form.

    Raises:
        ConversationFormError: It is neither; the message says in what.
    """
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ConversationFormError(f"is no JSON: {error}") from error
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list):
        raise ConversationFormError("has no list of messages")
    for number, message in enumerate(messages, start=1):
        if reason := _fault(message):
            raise ConversationFormError(f"message {number} {reason}")
    system = [text_of(message) for message in messages if message["role"] in _SYSTEM]
    rest = [message for message in messages if message["role"] not in _SYSTEM]
    return Conversation(system="\n\n".join(system), messages=rest)


def _fault(message: Any) -> str:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        return f"has none of the roles {', '.join(sorted(_ROLES))}"
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) for part in content):
            return "has a part that is no object"
    elif content is not None and not isinstance(content, str):
        return "has a content that is no text"
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        return "has a call without name or arguments"
    return ""


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return False
    arguments = function.get("arguments")
    return isinstance(arguments, str) and arguments_of(arguments) is not None


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _blind(message: dict[str, Any]) -> dict[str, Any]:
    parts = _parts(message)
    if not any(part.get("type") == "image_url" for part in parts):
        return message
    texts = [
        _NO_VISION if part.get("type") == "image_url" else part.get("text", "") for part in parts
    ]
    return {**message, "content": "\n".join(text for text in texts if text)}
