"""Files of tools: loading them, and running what a model calls."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters import tool_file as module
from ggufcluster.adapters.tool_file import ToolResult, load_toolbox
from ggufcluster.errors import ToolFileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _same_modules_after() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop(module._MODULE, None)
    sys.modules.pop("beside_the_tools", None)


def names(folder: Path, content: str) -> list[str]:
    """Write a file of tools and return what it offers."""
    (folder / "t.py").write_text(content)
    return list(load_toolbox(folder / "t.py").tools)


def test_public_functions_of_the_file_are_tools(tmp_path: Path) -> None:
    """What it imports, hides or defines as a class is none."""
    content = (
        "from __future__ import annotations\n"
        "from textwrap import dedent\n"
        "def one(): pass\n"
        "def _two(): pass\n"
        "class Three: pass\n"
        "async def four(): pass\n"
    )
    assert names(tmp_path, content) == ["one", "four"]


def test_all_decides_if_it_is_there(tmp_path: Path) -> None:
    """With __all__ exactly those are offered, also imported ones."""
    content = (
        "__all__ = ['dedent', '_two']\n"
        "from textwrap import dedent\n"
        "def one(): pass\n"
        "def _two(): pass\n"
    )
    assert names(tmp_path, content) == ["dedent", "_two"]


def test_what_lies_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    """As in a script; and types of the file are found by their names."""
    (tmp_path / "beside_the_tools.py").write_text("N = 3\n")
    (tmp_path / "t.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from beside_the_tools import N\n"
        "@dataclass\n"
        "class Place:\n"
        "    name: str\n"
        "def f(place: Place) -> str: return place.name * N\n"
    )
    toolbox = load_toolbox(tmp_path / "t.py")
    assert toolbox.run("f", '{"place": {"name": "x"}}') == ToolResult("xxx")


def test_what_a_tool_prints_does_not_reach_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither while loading nor while running: stdout is for the answer."""
    (tmp_path / "t.py").write_text("print('loads')\ndef f(): print('runs')\n")
    assert load_toolbox(tmp_path / "t.py").run("f", "") == ToolResult("null")
    assert capsys.readouterr() == ("", "loads\nruns\n")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("raise ValueError('bad\\nvalue')", "value"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import nothing_of_that_name", "ModuleNotFoundError"),
        ("return f()", "RecursionError"),
    ],
)
def test_whatever_a_tool_raises_is_a_result(tmp_path: Path, body: str, text: str) -> None:
    """The chat goes on, and the model is told."""
    (tmp_path / "t.py").write_text(f"def f():\n    {body}\n")
    result = load_toolbox(tmp_path / "t.py").run("f", "{}")
    assert result.failed
    assert text in result.text


def test_ctrl_c_is_not_caught(tmp_path: Path) -> None:
    """Stopping a tool stops the turn: the interrupt passes."""
    (tmp_path / "t.py").write_text("def f(): raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_toolbox(tmp_path / "t.py").run("f", "{}")


def test_coroutines_are_waited_for(tmp_path: Path) -> None:
    """An asynchronous function gives its result, or its error."""
    (tmp_path / "t.py").write_text(
        "import asyncio\nasync def f(n: int):\n    await asyncio.sleep(0)\n    return 6 // n\n"
    )
    toolbox = load_toolbox(tmp_path / "t.py")
    assert toolbox.run("f", '{"n": 2}') == ToolResult("3")
    assert "ZeroDivisionError" in toolbox.run("f", '{"n": 0}').text


def test_a_result_without_bounds_is_cut(tmp_path: Path) -> None:
    """A result that would fill any context is cut, and says so."""
    (tmp_path / "t.py").write_text("def f(): return 'x' * 1_000_000\n")
    result = load_toolbox(tmp_path / "t.py").run("f", "")
    assert len(result.text) < 201_000
    assert result.text.endswith("[800,000 letters more were left out]")


@pytest.mark.parametrize("name", ["missing.py", "folder.py", "t.txt"])
def test_what_is_no_file_of_python_is_refused(tmp_path: Path, name: str) -> None:
    """A missing file, a folder and another kind of file are named."""
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "t.txt").touch()
    with pytest.raises(ToolFileError, match=name):
        load_toolbox(tmp_path / name)
