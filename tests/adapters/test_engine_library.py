"""What can be said of the engine's libraries without loading them."""

from __future__ import annotations

import ctypes

import pytest

from ggufcluster.adapters.engine_library import formatted

TEXT = ctypes.create_string_buffer("worker:1 ä".encode())
ADDRESS = ctypes.addressof(TEXT)


@pytest.mark.parametrize(
    ("text", "arguments", "filled"),
    [
        ("lost %s: gone", (ADDRESS,), "lost worker:1 ä: gone"),
        ("%s after %d s", (ADDRESS, 20), "worker:1 ä after 20 s"),
        ("code %d", (0xFFFFFFFF,), "code -1"),
        ("nobody %s", (None,), "nobody (none)"),
        ("none", (1, 2), "none"),
        ("%s %d", (ADDRESS,), "worker:1 ä %d"),
    ],
)
def test_a_c_format_is_filled(text: str, arguments: tuple[int | None, ...], filled: str) -> None:
    """Strings come by address and numbers by value; what has no argument stays as it is."""
    assert formatted(text, arguments) == filled
