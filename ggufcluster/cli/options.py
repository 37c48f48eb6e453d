"""Options that several commands share."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

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
Model = Annotated[
    str | None, typer.Option(metavar="FILE", help="GGUF, a shard of a set, or its folder.")
]
Context = Annotated[
    str | None,
    typer.Option(metavar="N|max", help="Tokens per slot. Unset: a usual size that fits."),
]
Parallel = Annotated[int | None, typer.Option(metavar="N", help="Slots. Unset: 1.")]
KvType = Annotated[
    str | None, typer.Option(metavar="f16|q8_0|q4_0", help="KV cache. Unset: the model family's.")
]
Ubatch = Annotated[
    int | None, typer.Option(metavar="N", help="Tokens per ubatch. Unset: the family's.")
]
Msa = Annotated[
    str | None, typer.Option(metavar="auto|native|generic|dense", help="Path of sparse attention.")
]
AcceptKeys = Annotated[
    bool | None,
    typer.Option("--accept-new-host-keys", help="Add unknown SSH host keys to known_hosts."),
]
AllowPublic = Annotated[
    bool | None, typer.Option("--allow-public", help="Allow a worker on a public address.")
]
Backend = Annotated[str | None, typer.Option(metavar="auto|cpu|cuda", help="What to build for.")]
Arch = Annotated[
    list[str] | None,
    typer.Option("--arch", metavar="N", help="CUDA architecture, such as 121. Repeatable."),
]
Jobs = Annotated[int | None, typer.Option("--jobs", "-j", metavar="N", help="Parallel compilers.")]
Source = Annotated[
    str | None, typer.Option(metavar="DIR", help="llama.cpp tree to use instead of the pin.")
]
Url = Annotated[str | None, typer.Option(metavar="URL", help="Another server than the cluster's.")]
ApiKeyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Key of that server, on its first line.")
]


def help_of(command: Callable[..., Any]) -> str:
    """Return a command's docstring as its help, the lines of its examples left as they are."""
    # Click wraps every paragraph anew that does not begin with this character.
    return inspect.cleandoc(command.__doc__ or "").replace("\n\nExample", "\n\n\b\nExample")
