"""Wire the commands together; the single boundary for errors."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ggufcluster.cli import (
    chat,
    cluster,
    download,
    engine,
    graft,
    inspect,
    plan,
    prune,
    settings,
    smoke,
    template,
    toy,
)

if TYPE_CHECKING:
    from types import FrameType

    from ggufcluster.errors import GgufClusterError

_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Plain help: rich's would double the time that `--help` takes.
app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run one big GGUF model over a handful of machines.",
)


@app.callback(invoke_without_command=True)
def top(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Run one big GGUF model over a handful of machines."""
    if version:
        from ggufcluster import __version__

        typer.echo(f"ggufcluster {__version__}")
        raise typer.Exit


cluster.register(app)
plan.register(app)
engine.register(app)
prune.register(app)
download.register(app)
inspect.register(app)
graft.register(app)
toy.register(app)
template.register(app)
chat.register(app)
smoke.register(app)
settings.register(app)


class Interrupted(BaseException):
    """Ctrl-C, or an end asked for by the system.

    Not a KeyboardInterrupt: Typer would turn that into an exit code of its own.
    """


def run() -> None:
    """Run the command line; every error of ours becomes a line and an exit code."""
    from ggufcluster.cli.explain import INTERRUPTED, notes
    from ggufcluster.errors import GgufClusterError, LocalFileError

    # A closed terminal or a service manager must end a start as cleanly as Ctrl-C does.
    for number in _ENDINGS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, _interrupt)
    try:
        app()
    except GgufClusterError as error:
        sys.exit(_report(error))
    except BrokenPipeError:
        # Whoever read our output has had enough; Python would complain once more when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)  # as rich does
    except OSError as error:
        reason = error.strerror or str(error)
        sys.exit(_report(LocalFileError(reason, path=str(error.filename or ""))))
    except Interrupted as end:
        sys.stderr.writelines(f"{line}\n" for line in ("interrupted", *notes(end)))
        sys.exit(INTERRUPTED)


def _report(error: GgufClusterError) -> int:
    from ggufcluster.cli.output import Output

    return Output(as_json="--json" in sys.argv).error(error)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    # From here on the command only cleans up, and a second Ctrl-C must not cut that short.
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    raise Interrupted
