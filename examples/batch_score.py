"""Score many prompts with the running cluster, as many at a time as it has slots.

Reads one JSON object a line, {"prompt": ..., "expected": ...}, and prints the share of answers
that hold what was expected.

Usage: python examples/batch_score.py FILE.jsonl
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ggufcluster import Cluster


def main(file: str) -> None:
    """Ask every question and count."""
    cluster = Cluster.attach()
    client = cluster.client()
    cases = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]

    def holds(case: dict[str, Any]) -> bool:
        answer = client.chat.completions.create(
            model="",
            messages=[{"role": "user", "content": case["prompt"]}],
            max_tokens=512,
            temperature=0,
        )
        return case["expected"] in (answer.choices[0].message.content or "")

    with ThreadPoolExecutor(max_workers=max(1, cluster.record.parallel)) as pool:
        right = list(pool.map(holds, cases))
    for case, good in zip(cases, right, strict=True):
        print("right" if good else "wrong", case["prompt"])
    print(f"{sum(right)} of {len(right)} right")


if __name__ == "__main__":
    main(sys.argv[1])
