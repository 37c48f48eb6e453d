"""Ask a question that needs a tool, run the tool, and print what came of it.

Usage: python examples/tool_call.py [BASE_URL]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def get_weather(city: str, days: int = 1) -> str:
    """Stand in for a real weather service."""
    return f"sunny, 21 degrees, in {city} for {days} day(s)"


def ask(client: httpx.Client, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Send the conversation so far and return the whole answer."""
    body = {"messages": messages, "tools": [TOOL], "max_tokens": 1024}
    answer = client.post("/chat/completions", json=body).raise_for_status()
    result: dict[str, Any] = answer.json()
    return result


def show(answer: dict[str, Any]) -> dict[str, Any]:
    """Print what the model thought, said and called; return its message."""
    message: dict[str, Any] = answer["choices"][0]["message"]
    if message.get("reasoning_content"):
        print(f"reasoning:  {message['reasoning_content'].strip()}")
    for call in message.get("tool_calls") or []:
        print(f"tool call:  {call['function']['name']}({call['function']['arguments']})")
    if message.get("content"):
        print(f"answer:     {message['content'].strip()}")
    timings = answer["timings"]
    print(
        f"speed:      prefill {timings['prompt_per_second']:.0f} tok/s,"
        f" decode {timings['predicted_per_second']:.1f} tok/s\n"
    )
    return message


def main(base_url: str) -> None:
    """Hold the conversation: question, tool call, tool result, answer."""
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "What is the weather in Paris? Use the tool."}
    ]
    print(f"question:   {messages[0]['content']}")
    with httpx.Client(base_url=base_url, timeout=600, trust_env=False) as client:
        message = show(ask(client, messages))
        messages.append(message)
        for call in message.get("tool_calls") or []:
            result = get_weather(**json.loads(call["function"]["arguments"]))
            print(f"tool says:  {result}")
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if messages[-1]["role"] == "tool":
            show(ask(client, messages))


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080/v1"
    try:
        main(address)
    except httpx.ConnectError:
        sys.exit(f"nothing answers at {address}: see `ggufcluster status`, or name the address")
