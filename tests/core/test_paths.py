"""The folders of ggufcluster on a host."""

from __future__ import annotations

import subprocess
from pathlib import PurePosixPath

import pytest

from ggufcluster.core.paths import PROBE, paths_from_env, paths_from_probe
from ggufcluster.errors import ConfigError


def test_defaults_lie_under_home() -> None:
    """Without XDG variables, or with empty ones, the folders are those of the XDG standard."""
    paths = paths_from_env({"HOME": "/home/a", "XDG_CACHE_HOME": ""})
    assert paths.cache == PurePosixPath("/home/a/.cache/ggufcluster")
    assert paths.state == PurePosixPath("/home/a/.local/state/ggufcluster")
    assert paths.config == PurePosixPath("/home/a/.config/ggufcluster")
    assert paths.engines == PurePosixPath("/home/a/.cache/ggufcluster/engines")
    assert paths.models == PurePosixPath("/home/a/.local/share/ggufcluster/models")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"XDG_CACHE_HOME": "/big disk/c", "XDG_DATA_HOME": "/d", "XDG_STATE_HOME": ""},
        {"XDG_STATE_HOME": "relative", "XDG_CONFIG_HOME": "../c"},
    ],
)
def test_a_host_answers_the_probe_as_we_would(variables: dict[str, str]) -> None:
    """The probe, run by a plain shell, gives the same folders as reading the environment."""
    env = {"HOME": "/home/some one", **variables}
    run = subprocess.run(["sh", "-c", PROBE], env=env, capture_output=True, text=True, check=True)
    assert paths_from_probe(run.stdout) == paths_from_env(env)


def test_a_chatty_login_script_does_no_harm() -> None:
    """Lines printed before the answer are passed over."""
    paths = paths_from_probe("Welcome to spark!\n/c\n/s\n/k\n/d\n")
    assert paths.cache == PurePosixPath("/c/ggufcluster")
    assert paths.data == PurePosixPath("/d/ggufcluster")


def test_a_broken_answer_is_a_value_error() -> None:
    """Too few lines are not taken for folders."""
    with pytest.raises(ValueError, match="unpack"):
        paths_from_probe("/c\n/s\n")


def test_a_relative_folder_is_no_folder() -> None:
    """A relative XDG folder is ignored, as the specification wants: it would move with us."""
    assert paths_from_env({"HOME": "/h", "XDG_CACHE_HOME": "c"}) == paths_from_env({"HOME": "/h"})


@pytest.mark.parametrize("home", [{}, {"HOME": ""}, {"HOME": "somewhere"}])
def test_a_home_that_is_no_place_is_told(home: dict[str, str]) -> None:
    """Without an absolute HOME no folder is guessed."""
    with pytest.raises(ConfigError, match="environment: HOME is"):
        paths_from_env(home)
