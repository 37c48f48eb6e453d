"""Ask the running cluster something and print the answer as it comes.

Usage: python examples/chat.py [QUESTION]
"""

from __future__ import annotations

import sys

from ggufcluster import Cluster


def main(question: str) -> None:
    """Stream one answer: first what the model thinks, then what it says."""
    client = Cluster.attach().client()
    stream = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": question}],
        max_tokens=512,
        stream=True,
    )
    for piece in stream:
        delta = piece.choices[0].delta
        for text in (getattr(delta, "reasoning_content", None), delta.content):
            print(text or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "What is a distributed system?")
