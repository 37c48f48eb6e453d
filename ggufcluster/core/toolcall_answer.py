"""What a client gets from llama-server, however it asked: one form for four kinds of answer.

Streamed answers are merged the way clients do it: by index, in any order of arrival.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ggufcluster.core.toolcall_case import expected_content

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ggufcluster.core.template_style import Style
    from ggufcluster.core.toolcall_case import Case

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls"}
_FINISH |= {"max_tokens": "length"}


@dataclass(slots=True)
class AnswerCall:
    """A call as it arrives: `arguments` is the text of a JSON object, perhaps cut off."""

    name: str = ""
    arguments: str = ""
    id: str = ""


@dataclass(slots=True)
class Answer:
    """One whole answer, `finish` in OpenAI's words.

    `closed` says that its API has no way to leave a call's arguments open.
    """

    reasoning: str = ""
    content: str = ""
    calls: list[AnswerCall] = field(default_factory=list)
    finish: str = ""
    closed: bool = False


class AnswerFormError(ValueError):
    """An answer has not the form that its API promises."""


def openai_answer(body: Mapping[str, Any]) -> Answer:
    """Read a whole answer of `/v1/chat/completions`."""
    choice = body["choices"][0]
    message = choice["message"]
    return Answer(
        reasoning=message.get("reasoning_content") or "",
        content=message.get("content") or "",
        calls=[
            AnswerCall(call["function"]["name"], call["function"]["arguments"], call.get("id", ""))
            for call in message.get("tool_calls") or ()
        ],
        finish=choice["finish_reason"] or "",
    )


class OpenAiMerge:
    """Merge the events of a streamed `/v1/chat/completions` one by one.

    Attributes:
        answer: What has come so far; its calls are in the order of their indices.
    """

    def __init__(self) -> None:
        self.answer = Answer()
        self._calls: dict[int, AnswerCall] = {}

    def add(self, event: Mapping[str, Any]) -> tuple[str, str]:
        """Take an event in; return what it adds to the reasoning and to the content.

        Raises:
            AnswerFormError: A call's index is missing, or its name comes twice.
        """
        reasoning = content = ""
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            reasoning += _whole(delta.get("reasoning_content") or "")
            content += _whole(delta.get("content") or "")
            self.answer.finish = choice.get("finish_reason") or self.answer.finish
            for part in delta.get("tool_calls") or ():
                _merge_call(self._calls, part)
        self.answer.reasoning += reasoning
        self.answer.content += content
        self.answer.calls = [self._calls[index] for index in sorted(self._calls)]
        return reasoning, content


def _whole(text: str) -> str:
    """Replace halves of letters, which JSON can tell and UTF-8 cannot."""
    return text.encode(errors="replace").decode()


def openai_stream(events: Iterable[Mapping[str, Any]]) -> Answer:
    """Merge the events of a streamed `/v1/chat/completions`.

    Raises:
        AnswerFormError: A call's index is missing, or its name comes twice.
    """
    merge = OpenAiMerge()
    for event in events:
        merge.add(event)
    return merge.answer


def _merge_call(calls: dict[int, AnswerCall], part: Mapping[str, Any]) -> None:
    if not isinstance(part.get("index"), int):
        raise AnswerFormError(f"a streamed call has no index: {part!r:.100}")
    call = calls.setdefault(part["index"], AnswerCall())
    function = part.get("function") or {}
    if name := function.get("name"):
        if call.name:
            raise AnswerFormError(f"call {part['index']} is named twice: {call.name}, {name}")
        call.name = name
    call.id = part.get("id") or call.id
    call.arguments += function.get("arguments") or ""


def anthropic_answer(body: Mapping[str, Any]) -> Answer:
    """Read a whole answer of `/v1/messages`."""
    answer = Answer(finish=_finish(body.get("stop_reason")), closed=True)
    for block in body["content"]:
        _add_block(answer, block, json.dumps(block.get("input")))
    return answer


def anthropic_stream(events: Iterable[Mapping[str, Any]]) -> Answer:
    """Merge the events of a streamed `/v1/messages`.

    Raises:
        AnswerFormError: A block is started twice, or a delta is for a block that was not started or
            is of another kind.
    """
    blocks: dict[int, dict[str, Any]] = {}
    answer = Answer()
    for event in events:
        if event["type"] == "content_block_start":
            if event["index"] in blocks:
                raise AnswerFormError(f"block {event['index']} is started twice")
            blocks[event["index"]] = {"text": "", "thinking": "", **event["content_block"]}
            blocks[event["index"]]["json"] = ""
        elif event["type"] == "content_block_delta":
            _merge_delta(blocks, event)
        elif event["type"] == "message_delta":
            answer.finish = _finish(event["delta"].get("stop_reason"))
    for _, block in sorted(blocks.items()):
        _add_block(answer, block, block["json"])
    return answer


def _merge_delta(blocks: dict[int, dict[str, Any]], event: Mapping[str, Any]) -> None:
    delta = event["delta"]
    kinds = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking")}
    kinds["input_json_delta"] = ("tool_use", "json")
    if delta["type"] == "signature_delta":
        return
    kind, target = kinds[delta["type"]]
    block = blocks.get(event["index"])
    if block is None or block["type"] != kind:
        raise AnswerFormError(f"a {delta['type']} comes for no {kind} block: {event!r:.100}")
    block[target] += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""


def _add_block(answer: Answer, block: Mapping[str, Any], arguments: str) -> None:
    match block["type"]:
        case "thinking":
            answer.reasoning += block["thinking"]
        case "text":
            answer.content += block["text"]
        case "tool_use":
            answer.calls.append(AnswerCall(block["name"], arguments, block.get("id", "")))


def _finish(reason: str | None) -> str:
    return _FINISH.get(reason or "", reason or "")


def mismatches(case: Case, answer: Answer, style: Style) -> tuple[str, ...]:
    """Say in what an answer is not what the case expects; nothing if it is."""
    found = [
        *_text_mismatch("reasoning", case.reasoning, answer.reasoning),
        *_content_mismatch(case, answer, style),
        *_call_mismatches(case, answer),
    ]
    if answer.finish != case.finish:
        found.append(f"finish is {answer.finish!r}, not {case.finish!r}")
    ids = [call.id for call in answer.calls]
    if len(set(ids)) != len(ids) or not all(ids):
        found.append(f"calls need ids of their own, not {ids}")
    return tuple(found)


def _content_mismatch(case: Case, answer: Answer, style: Style) -> list[str]:
    if case.schema is not None and not case.calls:
        try:
            same = json.loads(answer.content) == json.loads(case.content)
        except ValueError:
            same = False
        return [] if same else [f"content is {answer.content!r:.200}, not {case.content!r:.200}"]
    return _text_mismatch("content", expected_content(case, style), answer.content)


def _text_mismatch(what: str, expected: str, got: str) -> list[str]:
    if expected.strip() == got.strip():
        return []
    return [f"{what} is {got!r:.200}, not {expected!r:.200}"]


def _call_mismatches(case: Case, answer: Answer) -> list[str]:
    got = [call.name for call in answer.calls]
    expected = [call.name for call in case.calls]
    if got != expected:
        return [f"calls are {got}, not {expected}"]
    found = []
    for number, (call, wanted) in enumerate(zip(answer.calls, case.calls, strict=True), start=1):
        last = number == len(expected)
        cut = case.finish == "length" and last
        same = (_is_part if answer.closed else _is_cut_off) if cut else _same
        if not same(call, wanted.arguments):
            text = json.dumps(wanted.arguments, ensure_ascii=False)
            found.append(f"call {number} has {call.arguments:.200}, not {text:.200}")
    return found


def _same(call: AnswerCall, wanted: Mapping[str, Any]) -> bool:
    try:
        return bool(typed(json.loads(call.arguments)) == typed(wanted))
    except ValueError:
        return False


def typed(value: Any) -> Any:
    """Make JSON values comparable: true is not 1, which Python takes for equal, and 1.0 is."""
    if isinstance(value, dict):
        return {key: typed(member) for key, member in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return (isinstance(value, bool), value)


def _is_part(call: AnswerCall, whole: Mapping[str, Any]) -> bool:
    """Tell whether arguments are some of those of `whole`, the last one perhaps shortened."""
    try:
        members = list(json.loads(call.arguments).items())
    except (ValueError, AttributeError):
        return False
    complete = [whole.get(name) == value for name, value in members]
    if members and not complete[-1]:
        name, value = members[-1]
        complete[-1] = isinstance(value, str) and str(whole.get(name)).startswith(value)
    return all(complete)


def _is_cut_off(call: AnswerCall, whole: Mapping[str, Any]) -> bool:
    """Tell whether arguments are a beginning of `whole` that does not pretend to be complete."""
    try:
        json.loads(call.arguments)
    except ValueError:
        squeezed = "".join(json.dumps(whole, ensure_ascii=False).split())
        return squeezed.startswith("".join(call.arguments.split()))
    return False
