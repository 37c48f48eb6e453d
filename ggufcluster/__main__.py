"""Run the command line: ``python -m ggufcluster``."""

from __future__ import annotations

import gc
import signal

# Almost all objects of a start are there to stay. Python would look them through for garbage every
# 700 new ones, and once more at the exit: together a fifth of what a short command takes.
_NEW_OBJECTS = 50_000


def main() -> None:
    """Run the command line."""
    gc.set_threshold(_NEW_OBJECTS)
    # Nothing is begun before the imports are done: until then Ctrl-C ends it without a word.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ggufcluster.cli.app import run

    try:
        run()
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
