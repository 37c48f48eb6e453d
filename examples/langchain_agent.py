"""Let LangChain call a Python function for the model of the running cluster until it has answered.

Needs langchain-openai, which the extra `examples` installs.

Usage: python examples/langchain_agent.py [QUESTION]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from ggufcluster import Cluster

if TYPE_CHECKING:
    from langchain_core.messages import AnyMessage

MOST_ROUNDS = 8


@tool
def get_weather(city: str, days: int = 1) -> str:
    """Tell the weather in a city."""
    return f"sunny, 21 degrees, in {city} for {days} day(s)"


def main(question: str) -> None:
    """Ask, let LangChain run the tools that are called, and ask again with their results."""
    cluster = Cluster.attach()
    model = ChatOpenAI(
        model=cluster.record.model,
        base_url=cluster.base_url,
        api_key=cluster.api_key or "none",
        timeout=600,
    ).bind_tools([get_weather])
    messages: list[AnyMessage] = [HumanMessage(question)]
    for _ in range(MOST_ROUNDS):
        answer = model.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            print(answer.text)
            return
        for call in answer.tool_calls:
            print(f"calls {call['name']}({call['args']})")
            messages.append(get_weather.invoke(call))
    print("gave up: the model goes on calling tools")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is the weather in Paris? Use the tool.")
