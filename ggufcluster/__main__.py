"""Run the command line: ``python -m ggufcluster``."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    from ggufcluster.cli.app import run

    run()


if __name__ == "__main__":
    main()
