"""Keyword arguments as settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufcluster.bindings.options import UpOptions, flags_of
from ggufcluster.config import SETTINGS


def test_every_option_is_a_setting() -> None:
    """Each option stands for a setting that exists."""
    options = dict.fromkeys(UpOptions.__optional_keys__, 1)
    keys = {setting.key for setting in SETTINGS}
    assert flags_of(("local",), options).keys() <= keys


def test_paths_and_workers_become_texts() -> None:
    """Paths turn into text; one worker may be written without a list; None is left to settings."""
    assert flags_of("local:2", {"model": Path("/m.gguf")}) == {
        "model": "/m.gguf",
        "workers.hosts": ("local:2",),
    }
    assert flags_of(None, {"template": None}) == {"template": None}


def test_an_unknown_option_is_a_type_error() -> None:
    """A misspelled option is refused by name instead of being ignored."""
    with pytest.raises(TypeError, match="kv_tipe"):
        flags_of((), {"kv_tipe": "f16"})
