"""What an installed package holds, as a wheel and as an editable install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ggufcluster
from ggufcluster import resources
from ggufcluster.workflows.source import locate_source, read_vendor, source_fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
# Nothing is fetched; the build backend is the one of this environment.
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation")
LOOK = """
import json
from pathlib import Path
import ggufcluster
from ggufcluster import resources
from ggufcluster.workflows.source import locate_source, read_vendor, source_fingerprint

vendor = read_vendor(None)
folder = Path(ggufcluster.__file__).parent
print(json.dumps({
    "folder": str(folder),
    "fingerprint": source_fingerprint(locate_source(vendor.pin, None), vendor),
    "templates": sorted(path.name for path in resources.templates().rglob("*")),
    "files": [(folder / name).is_file() for name in ("py.typed", "example.toml")],
}))
"""


def run(words: Iterable[str | Path], **env: str) -> str:
    """Run a program to its good end and return what it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """The programs of a new environment that knows our dependencies, and no ggufcluster."""
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # Files of this kind inside the folder that is named are not read, editable installs neither.
    (packages / "zz-dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return tmp_path / "venv" / "bin"


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    run([*PIP, "wheel", *OFFLINE, "--wheel-dir", folder, ROOT])
    (wheel,) = folder.glob("ggufcluster-*.whl")
    return wheel


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_an_installed_package_is_whole(fresh: Path, tmp_path: Path, kind: str) -> None:
    """It runs as a module and as a program, and finds the same templates, patches and overlay."""
    what = [build_wheel(tmp_path)] if kind == "wheel" else ["--editable", ROOT]
    run([*PIP, "--python", fresh / "python", "install", *OFFLINE, *what])
    alone = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    found = json.loads(run([fresh / "python", "-c", LOOK], **alone))
    as_module = run([fresh / "python", "-m", "ggufcluster", "--version"], **alone)
    as_program = run([fresh / "ggufcluster", "--version"], **alone)

    vendor = read_vendor(None)
    assert found["fingerprint"] == source_fingerprint(locate_source(vendor.pin, None), vendor)
    assert found["templates"] == sorted(path.name for path in resources.templates().rglob("*"))
    assert found["files"] == [True, True]
    assert as_module == as_program == f"ggufcluster {ggufcluster.__version__}\n"
    inside = Path(found["folder"]).is_relative_to(tmp_path)
    assert inside if kind == "wheel" else found["folder"] == str(ROOT / "ggufcluster")
