"""A process of its own that renders a stranger's template, with little time, memory and no files.

Run as a program it reads one JSON object from stdin, `template` and `contexts`, and writes one JSON
list to stdout. `render_apart` starts it.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggufcluster.core.chat_template import Rendered, render
from ggufcluster.core.command import Command
from ggufcluster.errors import CommandTimeoutError, TemplateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ggufcluster.adapters.remote import Remote

CPU_SECONDS = 10
WALL_SECONDS = 30.0
MEMORY_BYTES = 1 << 30
MOST_TEMPLATE = 1_000_000
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


def render_apart(
    local: Remote,
    text: str,
    contexts: Sequence[Mapping[str, Any]],
    *,
    path: str,
    cpu_seconds: int = CPU_SECONDS,
) -> list[Rendered]:
    """Render a template in a process of its own, once for each set of variables.

    Raises:
        TemplateError: It is too large, or took too much time or memory.
    """
    if len(text) > MOST_TEMPLATE:
        raise TemplateError(f"has {len(text):,} letters, more than any template", path=path)
    limits = {"cpu_seconds": cpu_seconds}
    question = json.dumps({"template": text, "contexts": list(contexts), **limits}).encode()
    child = Command(
        (sys.executable, "-m", "ggufcluster.adapters.template_child"),
        env={"PYTHONPATH": _PACKAGE_PARENT, "PYTHONHASHSEED": "0"},
        stdin=question,
    )
    try:
        result = local.run(child, timeout=WALL_SECONDS, check=False)
    except CommandTimeoutError as error:
        raise TemplateError(f"did not render within {WALL_SECONDS:.0f} s", path=path) from error
    if result.exit_code != 0:
        # The kernel or Python ended it; what it says is the template's doing, not for people.
        raise TemplateError("took too much time or memory to render", path=path)
    return [Rendered(**one) for one in json.loads(result.stdout)]


def main() -> None:
    """Render what stdin asks for, within limits that cannot be raised again."""
    question = json.load(sys.stdin)
    # Whatever must be loaded is loaded now, also for failures: there are no files later.
    render("{{ strftime_now('%d') | tojson }}{{ nothing.at.all }}", [{}])
    _limit(question["cpu_seconds"])
    answers = render(question["template"], question["contexts"])
    json.dump([{"text": one.text, "failure": one.failure} for one in answers], sys.stdout)


def _limit(cpu_seconds: int) -> None:
    limits = {
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 3,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    os.environ.clear()


if __name__ == "__main__":
    main()
