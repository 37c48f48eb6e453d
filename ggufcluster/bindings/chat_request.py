"""llama_cpp's arguments of a chat as the body of a request to llama-server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class ChatOptions(TypedDict, total=False):
    """What `Llama.create_chat_completion` takes beside llama_cpp's own arguments.

    Attributes:
        reasoning_effort: ``none`` does without thinking; what else counts is the template's.
        enable_thinking: Whether to think at all.
        parallel_tool_calls: Whether one answer may hold several calls.
        chat_template_kwargs: Further variables of the template.
        reasoning_format: ``deepseek`` gives the reasoning apart, ``none`` leaves it in the text.
        continue_final_message: Whether the last message is the beginning of the answer.
        add_generation_prompt: Whether the prompt ends with the beginning of an answer.
    """

    reasoning_effort: str
    enable_thinking: bool
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any]
    reasoning_format: str
    continue_final_message: bool | str
    add_generation_prompt: bool


def request_body(
    messages: Iterable[Any],
    options: ChatOptions,
    *,
    functions: Sequence[Mapping[str, Any]] | None = None,
    function_call: str | Mapping[str, Any] | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Return the body of a chat completion request in OpenAI's form.

    Args:
        messages: The conversation; calls and results of functions become those of tools.
        options: What llama_cpp has no arguments for.
        functions: Tools in the form that came before tools.
        function_call: Choice of a tool in that form.
        asked: Further fields; those that are None are left out.
    """
    if functions is not None:
        asked["tools"] = [{"type": "function", "function": function} for function in functions]
    if function_call is not None:
        asked["tool_choice"] = (
            function_call
            if isinstance(function_call, str)
            else {"type": "function", "function": dict(function_call)}
        )
    fields: dict[str, Any] = {"messages": _with_tool_calls(messages), **asked, **options}
    return {name: value for name, value in fields.items() if value is not None}


def _with_tool_calls(messages: Iterable[Any]) -> list[Any]:
    """Return a conversation in which functions, as they were before tools, are tools.

    Messages may be objects of the `openai` package. What is no message is left to be refused.
    """
    found: list[Any] = []
    call = "call_0"
    for number, given in enumerate(messages):
        message = given.model_dump(exclude_none=True) if hasattr(given, "model_dump") else given
        fields = dict(message) if isinstance(message, Mapping) else {}
        if fields.get("function_call") and not fields.get("tool_calls"):
            call = f"call_{number}"
            function = fields.pop("function_call")
            message = {**fields, "tool_calls": [_tool_call(call, function)]}
        elif fields.get("role") == "function":
            message = {**fields, "role": "tool", "tool_call_id": call}
        found.append(message)
    return found


def _tool_call(name: str, function: Any) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": function}
