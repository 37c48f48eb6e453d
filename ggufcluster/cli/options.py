"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")]
Workers = Annotated[
    list[str] | None,
    typer.Option(
        "--worker",
        "-w",
        metavar="[USER@]HOST[:PORT]",
        help="A worker over SSH, or local, or local:N. Repeatable.",
    ),
]
AcceptKeys = Annotated[
    bool | None,
    typer.Option("--accept-new-host-keys", help="Add unknown SSH host keys to known_hosts."),
]
Backend = Annotated[str | None, typer.Option(metavar="auto|cpu|cuda", help="What to build for.")]
Arch = Annotated[
    list[str] | None, typer.Option("--arch", help="CUDA architecture, such as 121. Repeatable.")
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", help="Parallel compilers.")]
Source = Annotated[
    str | None, typer.Option(metavar="DIR", help="llama.cpp tree to use instead of the pin.")
]
