"""What `up` prints at the end: where the API is and how to use it from elsewhere."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from ggufcluster.core.record import fields_for_scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.cli.output import Output
    from ggufcluster.core.record import ClusterRecord
    from ggufcluster.workflows.dry_run import HostCommands


def show(output: Output, record: ClusterRecord, *, as_json: bool) -> None:
    """Print base URL, a curl line and snippets for common clients."""
    base = f"{record.root}/v1"
    if as_json:
        output.data({"base_url": base, **fields_for_scripts(record)})
        return
    # What everybody needs stands last: the rest scrolls off a small terminal.
    *clients, curl = snippets(record.root, record.model, record.api_key_file)
    for title, lines in (*clients, curl):
        output.heading(title)
        for line in lines:
            output.line(f"  {line}")
    output.heading(f"{record.model} answers at {base}")
    output.line("ggufcluster status | logs | down")


def show_dry_run(output: Output, plan: Sequence[HostCommands], *, as_json: bool) -> None:
    """Print the commands of each host."""
    if as_json:
        output.data({host.host: list(host.commands) for host in plan})
        return
    for host in plan:
        output.heading(host.host)
        for line in host.commands:
            output.line(f"  {line}")


def snippets(root: str, model: str, key_file: str | None) -> list[tuple[str, list[str]]]:
    """Return title and lines of each ready-made setting; keys themselves are never shown.

    Args:
        root: Root URL of the server.
        model: Name that the API shows.
        key_file: File with the API keys, if the server wants one.
    """
    base = f"{root}/v1"
    shell_key, written_key, auth = "none", "none", ""
    if key_file:
        shell_key = f"\"$(grep -m 1 '^[^#]' {shlex.quote(key_file)})\""
        written_key = f"<a key of {key_file}>"
        auth = f' -H "Authorization: Bearer "{shell_key}'
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": base, "apiKey": written_key},
        "models": {model: {}},
    }
    return [
        (
            "curl",
            [
                f"curl {base}/chat/completions -H 'Content-Type: application/json'{auth} \\",
                '  -d \'{"messages": [{"role": "user", "content": "Hello"}]}\'',
            ],
        ),
        (
            "Open WebUI",
            [f"OPENAI_API_BASE_URL={base}", f"OPENAI_API_KEY={written_key}"],
        ),
        (
            "opencode (opencode.json)",
            json.dumps({"provider": {"ggufcluster": provider}}, indent=1).splitlines(),
        ),
        (
            "Continue (config.yaml)",
            [
                "models:",
                f"  - name: {json.dumps(model)}",
                "    provider: openai",
                f"    model: {json.dumps(model)}",
                f"    apiBase: {base}",
                f"    apiKey: {json.dumps(written_key)}",
            ],
        ),
        (
            "Claude Code",
            [
                # Its attribution header changes with every request and so empties prompt caches.
                f"export ANTHROPIC_BASE_URL={root} ANTHROPIC_AUTH_TOKEN={shell_key}",
                f"export ANTHROPIC_MODEL={shlex.quote(model)} CLAUDE_CODE_ATTRIBUTION_HEADER=0",
            ],
        ),
    ]
