"""The tools of a Python file of the user's: load it, and run what the model calls."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ggufcluster.core.tool_schema import (
    Tool,
    ToolArgumentsError,
    ToolFormError,
    bind,
    result_text,
    tool_of,
)
from ggufcluster.errors import ToolFileError

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

_MODULE = "ggufcluster_tools"
_MOST_LETTERS = 200_000


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call gave: its text for the model, and whether it failed."""

    text: str
    failed: bool = False


class Toolbox:
    """Functions that a model may call.

    Attributes:
        tools: Them, by name.
    """

    def __init__(self, tools: dict[str, Tool]) -> None:
        self.tools = tools

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """What the model is told."""
        return [tool.schema for tool in self.tools.values()]

    def run(self, name: str, arguments: str) -> ToolResult:
        """Run one call; whatever goes wrong in it is a result for the model.

        What the function prints goes to stderr: stdout is for the answer.
        """
        tool = self.tools.get(name)
        if tool is None:
            known = ", ".join(self.tools) or "none"
            return ToolResult(f"Error: there is no tool {name!r}; there are: {known}", failed=True)
        try:
            bound = bind(tool, arguments)
            with contextlib.redirect_stdout(sys.stderr):
                value = tool.function(*bound.args, **bound.kwargs)
                if inspect.isawaitable(value):
                    value = asyncio.run(_result_of(value))
                text = result_text(value)
        except ToolArgumentsError as error:
            return ToolResult(f"Error: {error}", failed=True)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's code
            return ToolResult(f"Error: {_last_line(error)}", failed=True)
        return ToolResult(_bounded(text))


async def _result_of(value: Any) -> Any:
    return await value


def load_toolbox(path: Path) -> Toolbox:
    """Run a Python file and take its public functions as tools; those of `__all__` if it has one.

    Raises:
        ToolFileError: It cannot be read or run, or has no function that can be a tool.
    """
    module = _run_file(path)
    tools = {}
    for name, function in _functions(module):
        try:
            tools[name] = tool_of(function)
        except ToolFormError as error:
            raise ToolFileError(str(error), path=str(path)) from None
    if not tools:
        raise ToolFileError("it has no public functions", path=str(path))
    return Toolbox(tools)


def _run_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise ToolFileError("its name does not end with .py", path=str(path))
    module = importlib.util.module_from_spec(spec)
    # As for a script: what lies beside it can be imported, and classes find their module.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[_MODULE] = module
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except OSError as error:
        raise ToolFileError(error.strerror or str(error), path=str(path)) from None
    except SyntaxError as error:
        raise ToolFileError(f"line {error.lineno}: {error.msg}", path=str(path)) from None
    except (Exception, SystemExit) as error:  # the file is the user's and may raise anything
        reason = f"{_last_line(error)} (line {_line_in(error, path)})"
        raise ToolFileError(reason, path=str(path)) from error
    return module


def _functions(module: ModuleType) -> list[tuple[str, Any]]:
    listed = getattr(module, "__all__", None)
    found = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and (name in listed if listed is not None else _is_its_own(name, value))
    }
    return [(value.__name__, value) for value in found.values()]


def _is_its_own(name: str, function: Any) -> bool:
    return not name.startswith("_") and function.__module__ == _MODULE


def _last_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]


def _line_in(error: BaseException, path: Path) -> int | str:
    name = str(path.absolute())
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == name]
    return lines[-1] if lines and lines[-1] is not None else "?"


def _bounded(text: str) -> str:
    if len(text) <= _MOST_LETTERS:
        return text
    left = len(text) - _MOST_LETTERS
    return f"{text[:_MOST_LETTERS]}\n[{left:,} letters more were left out]"
