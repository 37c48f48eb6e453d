"""Run the command line: ``python -m ggufcluster``."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line."""
    # Nothing is begun before the imports are done: until then Ctrl-C ends it without a word.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ggufcluster.cli.app import run

    run()


if __name__ == "__main__":
    main()
