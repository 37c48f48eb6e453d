"""Find the data that ships beside the code: templates/ and vendor/llama.cpp/."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def vendor() -> Path:
    """Return the folder with our pin, patch series and overlay for llama.cpp."""
    return _find("vendor/llama.cpp")


def templates() -> Path:
    """Return the folder with our chat templates."""
    return _find("templates")


def _find(name: str) -> Path:
    # A wheel carries the data inside the package; a checkout has it beside the package.
    for root in (_PACKAGE / "_data", _PACKAGE.parent):
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"ggufcluster is installed without its {name} folder")
