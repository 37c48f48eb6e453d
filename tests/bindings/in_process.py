"""Run Python in a process of its own, as a user's program would: it may crash, fork or leak."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

ROOT = Path(__file__).parents[2]
_BEGINNING = """
import json, os, sys, threading
from pathlib import Path
TOY = sys.argv[1]

def report(**values):
    print("REPORT " + json.dumps(values))

def error_of(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except BaseException as error:
        return [type(error).__name__, str(error)]
    return []

def workers():
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\\0")
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        mine = f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}".encode() in environ.split(b"\\0")
        if mine and words[0].endswith(b"ggml-rpc-server"):
            found[int(words[words.index(b"--port") + 1])] = int(entry.name)
    return found

def load(*hosts, workers=None, **options):
    from ggufcluster import Llama
    # Threads that wait for one another by spinning take seconds on a machine that is busy.
    few = {"n_threads": 1, "n_threads_batch": 1}
    options = {"n_ctx": 1024, "n_ubatch": 128, **few, **options}
    if not options.get("endpoints"):
        options["workers"] = hosts or workers or ()
    return Llama(TOY, **options)

def greedy(model, tokens=tuple(range(10, 200)), count=16):
    found = []
    for token in model.generate(tokens, temp=0.0):
        found.append(int(token))
        if len(found) == count:
            return found
"""


class Programs:
    """Runs programs with folders of their own and the shared engine cache.

    Attributes:
        env: Their environment.
    """

    def __init__(self, folder: Path, engine: Engine, toy: Path) -> None:
        self.folder = folder
        self.toy = toy
        self.env = {
            **os.environ,
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(Path(engine.folder).parents[2]),
            "GGUFCLUSTER_ENGINE_BACKEND": "cpu",
            "PYTHONPATH": str(ROOT),
        }

    def run(self, program: str, *arguments: str, **env: str) -> dict[str, Any]:
        """Run a program to its end and return what it reported; it must end well.

        ``stdout`` and ``stderr`` are what it printed beside that.
        """
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _BEGINNING + textwrap.dedent(program),
                str(self.toy),
                *arguments,
            ],
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        reports = [line.removeprefix("REPORT ") for line in lines if line.startswith("REPORT ")]
        found: dict[str, Any] = json.loads(reports[-1]) if reports else {}
        found["stdout"] = [line for line in lines if not line.startswith("REPORT ")]
        return found | {"stderr": done.stderr}
