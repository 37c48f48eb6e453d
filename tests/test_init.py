"""The package as a whole."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import ggufcluster

ROOT = Path(ggufcluster.__file__).parents[1]


def test_the_version_is_the_projects() -> None:
    """The package says the version that pyproject.toml gives it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert ggufcluster.__version__ == project["project"]["version"]


def test_the_package_runs_as_a_module() -> None:
    """`python -m ggufcluster --version` is the command line."""
    words = [sys.executable, "-m", "ggufcluster", "--version"]
    run = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == f"ggufcluster {ggufcluster.__version__}\n"


def test_the_package_says_that_it_is_typed() -> None:
    """Type checkers of users find the marker file."""
    assert Path(ggufcluster.__file__).with_name("py.typed").exists()


def test_the_reference_is_in_step_with_the_docstrings() -> None:
    """docs/reference.md is what scripts/reference.py prints."""
    words = [sys.executable, "scripts/reference.py"]
    run = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert (ROOT / "docs" / "reference.md").read_text(encoding="utf-8") == run.stdout
    assert "### `Llama.__init__()`" in run.stdout
