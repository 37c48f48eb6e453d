"""What `up` prints at the end: where the API is and how to use it from elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.cli.output import Output
    from ggufcluster.core.record import ClusterRecord
    from ggufcluster.workflows.dry_run import HostCommands


def show(output: Output, record: ClusterRecord, *, as_json: bool) -> None:
    """Print base URL, a curl line and snippets for common clients."""
    base = f"{record.root}/v1"
    if as_json:
        output.data({"base_url": base, **asdict(record)})
        return
    key = '$(head -n 1 "' + record.api_key_file + '")' if record.api_key_file else "none"
    output.heading(f"{record.model} answers at {base}")
    for title, lines in snippets(base, record.root, record.model, key):
        output.heading(title)
        for line in lines:
            output.line(f"  {line}")
    output.line()
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


def snippets(base: str, root: str, model: str, key: str) -> list[tuple[str, list[str]]]:
    """Return title and lines of each ready-made setting.

    Args:
        base: URL that ends in /v1.
        root: The same without /v1.
        model: Name that the API shows.
        key: API key, or a shell expression that reads it, or ``none``.
    """
    auth = f' -H "Authorization: Bearer {key}"' if key != "none" else ""
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
            [f"OPENAI_API_BASE_URL={base}", f"OPENAI_API_KEY={key}"],
        ),
        (
            "opencode (opencode.json)",
            [
                '{"provider": {"ggufcluster": {"npm": "@ai-sdk/openai-compatible",',
                f'  "options": {{"baseURL": "{base}", "apiKey": "{key}"}},',
                f'  "models": {{"{model}": {{}}}}}}}}}}',
            ],
        ),
        (
            "Continue (config.yaml)",
            [
                "models:",
                f"  - name: {model}",
                "    provider: openai",
                f"    model: {model}",
                f"    apiBase: {base}",
                f"    apiKey: {key}",
            ],
        ),
        (
            "Claude Code",
            [
                # Its attribution header changes with every request and so empties prompt caches.
                f"export ANTHROPIC_BASE_URL={root} ANTHROPIC_AUTH_TOKEN={key}",
                f'export ANTHROPIC_MODEL="{model}" CLAUDE_CODE_ATTRIBUTION_HEADER=0',
            ],
        ),
    ]
