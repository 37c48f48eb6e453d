"""Let the model of the running cluster call a Python function until it has its answer.

Usage: python examples/tool_loop.py [QUESTION]
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ggufcluster import Cluster

MOST_ROUNDS = 8
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


def main(question: str) -> None:
    """Ask, run the tools that are called, and ask again with their results."""
    client = Cluster.attach().client()
    messages: list[Any] = [{"role": "user", "content": question}]
    for _ in range(MOST_ROUNDS):
        answer = client.chat.completions.create(
            model="", messages=messages, tools=[TOOL], max_tokens=1024
        )
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            print(f"calls {call.function.name}({call.function.arguments})")
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print("gave up: the model goes on calling tools")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is the weather in Paris? Use the tool.")
