"""Chat in this process, read as llama-server reads it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from ggufcluster.adapters.chat_library import AnswerState
from ggufcluster.bindings.chat_request import request_body
from ggufcluster.errors import ChatRequestError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from ggufcluster.adapters.chat_library import Answer, ChatTemplate
    from ggufcluster.bindings.chat_request import ChatOptions
    from ggufcluster.bindings.threaded_llama import ThreadedLlama


class ChatHandler:
    """What `Llama.create_chat_completion` calls: a request goes in, an answer in OpenAI's form out.

    Reasoning and tool calls come apart from the text, whole or streamed.

    Attributes:
        options: What the next request asks for beside llama_cpp's own arguments.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.options: ChatOptions = {}

    def __call__(
        self,
        *,
        llama: ThreadedLlama,
        messages: list[dict[str, Any]],
        stream: bool = False,
        stop: str | list[str] | None = None,
        grammar: Any = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        **arguments: Any,
    ) -> dict[str, Any] | Iterator[dict[str, Any]]:
        """Answer; llama_cpp says what the arguments mean."""
        old = arguments.get("functions") is not None
        fields = ("functions", "function_call", "tools", "tool_choice", "response_format")
        body = request_body(
            messages,
            self.options,
            **{name: arguments.pop(name, None) for name in fields},
            stop=stop,
            stream=stream,
            grammar=None if grammar is None else grammar._grammar,  # noqa: SLF001 - its only text
        )
        answer = llama.prepare(self._template, body)
        prompt = llama.tokenize(answer.asked["prompt"].encode(), add_bos=True, special=True)
        with llama.spelling(_control_tokens(llama, answer)):
            completion: Any = llama.create_completion(
                prompt=prompt,
                stream=stream,
                stop=answer.asked["stop"],
                grammar=cast("Any", answer) if grammar is None else grammar,
                logprobs=(top_logprobs or 1) if logprobs else None,
                **arguments,
            )
        if stream:
            return self._pieces(llama, answer, completion, old=old)
        whole = _whole(answer, completion)
        return _with_function_call(whole, "message") if old else whole

    def _pieces(
        self,
        llama: ThreadedLlama,
        answer: Answer,
        chunks: Generator[dict[str, Any], None, None],
        *,
        old: bool,
    ) -> Iterator[dict[str, Any]]:
        tokens = _control_tokens(llama, answer)
        role: dict[str, Any] | None = {"role": "assistant"}
        with closing(chunks):
            while (chunk := _next(llama, tokens, chunks)) is not None:
                if role is not None:
                    yield _piece(chunk, role)
                    role = None
                for piece in _read_piece(answer, chunk):
                    yield _with_function_call(piece, "delta") if old else piece


def _control_tokens(llama: ThreadedLlama, answer: Answer) -> list[int]:
    """Return the control tokens that belong to the text of an answer."""
    found = (
        llama.tokenize(text.encode(), add_bos=False, special=True)
        for text in answer.asked["preserved_tokens"]
    )
    return [tokens[0] for tokens in found if len(tokens) == 1]


def _next(
    llama: ThreadedLlama, tokens: list[int], chunks: Iterator[dict[str, Any]]
) -> dict[str, Any] | None:
    # Between two pieces the model is its owner's, who may ask it for other texts.
    with llama.spelling(tokens):
        return next(chunks, None)


def _whole(answer: Answer, completion: dict[str, Any]) -> dict[str, Any]:
    choice = completion["choices"][0]
    read = _read(answer, choice["text"], choice["finish_reason"])
    message = read["message"]
    return {
        **_head(completion, "chat.completion"),
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": _logprobs(choice["logprobs"]),
                "finish_reason": _finish(choice["finish_reason"], message),
            }
        ],
        "usage": completion["usage"],
    }


def _read_piece(answer: Answer, chunk: dict[str, Any]) -> Iterator[dict[str, Any]]:
    choice = chunk["choices"][0]
    finish = choice["finish_reason"]
    read = _read(answer, choice["text"], finish)
    for number, delta in enumerate(read["deltas"]):
        yield _piece(chunk, delta, logprobs=None if number else choice["logprobs"])
    if finish is not None:
        yield _piece(chunk, {}, finish=_finish(finish, read["message"]))


def _read(answer: Answer, text: str, finish: str | None) -> dict[str, Any]:
    """Read on; what is not in the template's form comes back at the end as it was written."""
    state = {None: AnswerState.GOES_ON, "length": AnswerState.CUT}.get(finish, AnswerState.ENDED)
    try:
        return answer.read(text, state)
    except ChatRequestError:
        if state is AnswerState.GOES_ON:
            return {"deltas": []}
        return answer.give_up()


def _finish(finish: str, message: dict[str, Any]) -> str:
    return "tool_calls" if finish == "stop" and message.get("tool_calls") else finish


def _with_function_call(answer: dict[str, Any], part: str) -> dict[str, Any]:
    """Give the first call also in the form that came before tools, to whom asked in it."""
    choice = answer["choices"][0]
    found = choice[part]
    calls = [call for call in found.get("tool_calls", ()) if call.get("index", 0) == 0]
    if calls:
        choice[part] = {**found, "function_call": calls[0]["function"]}
    return answer


def _head(completion: dict[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": "chat" + completion["id"],
        "object": kind,
        "created": completion["created"],
        "model": completion["model"],
    }


def _piece(
    chunk: dict[str, Any],
    delta: dict[str, Any],
    *,
    finish: str | None = None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": _logprobs(logprobs), "finish_reason": finish}
    return {**_head(chunk, "chat.completion.chunk"), "choices": [choice]}


def _logprobs(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the shares of a completion in the form of a chat's."""
    if found is None:
        return None
    tokens = zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True)
    content = [
        {
            "token": token,
            "bytes": None,
            "logprob": share,
            "top_logprobs": [
                {"token": other, "bytes": None, "logprob": more}
                for other, more in (top or {}).items()
            ],
        }
        for token, share, top in tokens
    ]
    return {"content": content, "refusal": None}
