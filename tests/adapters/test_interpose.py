"""Redirecting a call that a shared library makes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

ROOT = Path(__file__).parents[2]


@pytest.mark.engine
def test_a_call_goes_elsewhere_and_only_that_one(engine: Engine) -> None:
    """The engine's fatal end comes to us with its text; a name that is not called is not found."""
    program = """
        import ctypes, os, sys
        from ggufcluster.adapters.interpose import redirect
        base = ctypes.CDLL(sys.argv[1] + "/libggml-base.so")
        rpc = ctypes.CDLL(sys.argv[1] + "/libggml-rpc.so")
        seen = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)

        def fail(code, text, endpoint):
            print(code, text.decode(), endpoint.decode(), flush=True)
            os._exit(0)

        callback = kind(fail)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert not redirect(rpc, "no_such_function", address)
        assert redirect(rpc, "_ZN11ggufcluster4failEiPKcz", address)
        rpc.ggml_backend_rpc_add_server(b"nonsense")
    """
    words = [sys.executable, "-c", textwrap.dedent(program), str(engine.bin)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT, timeout=60)
    assert done.stdout == "2 error: '%s' is no worker endpoint: expected HOST:PORT nonsense\n"
    assert done.stderr == ""


def test_layouts_are_those_of_the_specification() -> None:
    """The structures have the sizes that ELF-64 gives them."""
    from ggufcluster.adapters import interpose

    assert ctypes.sizeof(interpose._Dynamic) == 16
    assert ctypes.sizeof(interpose._Relocation) == 24
