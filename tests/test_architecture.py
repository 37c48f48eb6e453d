"""The rules of the layout, read from the source without running it.

``cli -> workflows -> adapters -> core``: a layer may import itself, the layers after it and, of the
modules at the package's top, those listed in `_ALLOWED`. Imports that only type checkers see count
as well.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import ggufcluster

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(ggufcluster.__file__).parent

# What each layer, and each module at the top, may import of ours.
_ALLOWED: dict[str, set[str]] = {
    "errors": {"errors"},
    "core": {"errors", "core"},
    "adapters": {"errors", "core", "adapters"},
    "resources": set(),
    "config": {"errors", "core"},
    "workflows": {"errors", "core", "adapters", "workflows", "resources"},
    "testing": {"errors", "core", "adapters", "testing"},
    "hub_wiring": {"errors", "adapters"},
    "wiring": {"errors", "core", "adapters", "workflows", "config", "hub_wiring"},
    "cli": {
        *("errors", "core", "workflows", "config", "resources", "cli", "__init__"),
        *("wiring", "hub_wiring"),
    },
    "bindings": {"errors", "core", "adapters", "workflows", "config", "wiring", "bindings"},
    "__init__": {"bindings"},
    "__main__": {"cli"},
}

# Core decides; it neither reads clocks, files and environment nor talks to anybody.
_IMPURE = {
    *("asyncio", "builtins", "fcntl", "getpass", "glob", "io", "logging", "multiprocessing", "os"),
    *("platform", "select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "sys"),
    *("tempfile", "threading", "time", "urllib"),
}
_IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}

# A package that enters in one place only.
_SOLE_IMPORTERS: dict[str, str | tuple[str, ...]] = {
    "paramiko": "adapters/ssh/",
    "subprocess": "adapters/local.py",
    "httpx": "adapters/http/",
    "huggingface_hub": "adapters/hub.py",
    "typer": "cli/",
    "rich": "cli/",
    "llama_cpp": ("adapters/engine_library.py", "bindings/threaded_llama.py"),
    "openai": "bindings/client.py",
    "jinja2": "core/chat_template.py",
    "tomllib": ("config.py", "core/build_id.py", "core/toolcall_case.py"),
}

_MOST_LINES = 400
_MOST_LINES_OF_FUNCTION = 60
# Typer turns parameters into options: this one is long by its options alone.
_LONG_FUNCTIONS = {("cli/cluster.py", "up")}
_VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "misc", "tools"}


@dataclass(frozen=True)
class Module:
    """One source file."""

    path: str
    tree: ast.Module
    lines: int

    @property
    def layer(self) -> str:
        """Its layer, or its own name at the top."""
        return self.path.partition("/")[0].removesuffix(".py")

    def imports(self, *, typing: bool = True) -> Iterator[str]:
        """Yield the full name of everything that is imported, anywhere in the file.

        Args:
            typing: Count imports that only type checkers see as well.
        """
        hidden = set() if typing else set(self._seen_by_type_checkers())
        for node in set(ast.walk(self.tree)) - hidden:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}: imports are absolute"
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def calls(self) -> Iterator[str]:
        """Yield the name of every function that is called by a bare name."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node.func.id

    def _seen_by_type_checkers(self) -> Iterator[ast.AST]:
        for node in self.tree.body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                yield from ast.walk(node)


def _read(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path.relative_to(ROOT).as_posix(), ast.parse(text), len(text.splitlines()))


MODULES = [_read(path) for path in sorted(ROOT.rglob("*.py"))]
CORE = [module for module in MODULES if module.layer == "core"]


def _ours(name: str) -> str | None:
    """Return the layer or top module that an import reaches, None for a foreign one."""
    package, _, rest = name.partition(".")
    if package != "ggufcluster":
        return None
    first = rest.partition(".")[0]
    inside = (ROOT / first).is_dir() or (ROOT / f"{first}.py").is_file()
    return first if inside else "__init__"


def test_every_module_belongs_to_a_layer() -> None:
    """A new folder or a new module at the top needs a rule of its own."""
    assert {module.layer for module in MODULES} <= _ALLOWED.keys()


def test_imports_point_inwards() -> None:
    """No module imports a layer that stands before its own."""
    outward = {
        (module.path, name)
        for module in MODULES
        for name in module.imports()
        if _ours(name) not in {None, *_ALLOWED[module.layer]}
    }
    assert outward == set()


def test_the_core_reaches_nothing_outside() -> None:
    """The core imports and calls nothing impure; of pathlib it makes pure paths only."""
    imported = {
        (module.path, name)
        for module in CORE
        for name in module.imports()
        if name.partition(".")[0] in _IMPURE and not name.startswith("urllib.parse.")
    }
    paths = {
        (module.path, name)
        for module in CORE
        for name in module.imports(typing=False)
        if name.startswith("pathlib") and name != "pathlib.PurePosixPath"
    }
    called = {(m.path, name) for m in CORE for name in m.calls() if name in _IMPURE_CALLS}
    assert imported | paths | called == set()


def test_the_core_asks_no_clock() -> None:
    """Time and date come from outside: the core never asks for now or today."""
    asked = {
        f"{module.path}: {node.attr}"
        for module in CORE
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and node.attr in {"now", "today", "utcnow", "environ"}
    }
    assert asked == set()


@pytest.mark.parametrize("package", sorted(_SOLE_IMPORTERS))
def test_a_package_enters_in_one_place(package: str) -> None:
    """Each outside world is imported by its adapter alone."""
    importers = {
        module.path
        for module in MODULES
        if package in {name.partition(".")[0] for name in module.imports()}
    }
    assert importers
    assert {path for path in importers if not path.startswith(_SOLE_IMPORTERS[package])} == set()


def test_only_the_command_line_prints() -> None:
    """Workflows and adapters print nothing; the sink of the command line does."""
    printers = {module.path for module in MODULES if "print" in module.calls()}
    assert printers == {"cli/output.py"}


def test_modules_stay_small_and_well_named() -> None:
    """A module has at most 400 lines and a name that says what is in it."""
    big = {module.path for module in MODULES if module.lines > _MOST_LINES}
    vague = {
        module.path
        for module in MODULES
        if _VAGUE_NAMES & set(module.path.removesuffix(".py").split("/"))
    }
    assert big | vague == set()


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function without its docstring."""
    first = function.body[0]
    docstring = 0
    if ast.get_docstring(function) is not None:
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1
    return (function.end_lineno or function.lineno) - function.lineno + 1 - docstring


def test_functions_stay_small() -> None:
    """No function has more than 60 lines beside its docstring, except the one with all options."""
    long = {
        (module.path, node.name)
        for module in MODULES
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _length(node) > _MOST_LINES_OF_FUNCTION
    }
    assert long == _LONG_FUNCTIONS


def test_tests_mirror_the_package() -> None:
    """A test module of a layer begins with the name of the module that it tests."""
    tests = Path(__file__).parent
    for layer in ("core", "adapters", "cli", "workflows", "bindings"):
        for path in (tests / layer).rglob("test_*.py"):
            folder = ROOT / path.parent.relative_to(tests)
            name = path.stem.removeprefix("test_")
            assert any(name.startswith(module.stem) for module in folder.iterdir()), path
