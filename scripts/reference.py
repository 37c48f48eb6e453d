"""Print the reference of the Python API, from the docstrings, as Markdown.

python3 scripts/reference.py > docs/reference.md

Sources are read and not imported: `Llama` could not be without an engine.
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[1] / "ggufcluster"
# Module, and what of it is told; the order is that of the page.
CHAPTERS = (
    ("bindings/cluster.py", ("Cluster",)),
    ("bindings/options.py", ("UpOptions",)),
    ("bindings/client.py", ("Client",)),
    ("bindings/llama.py", ("Llama",)),
    ("bindings/threaded_llama.py", ("ThreadedLlama",)),
    ("bindings/chat_request.py", ("ChatOptions",)),
    ("bindings/async_llama.py", ("AsyncLlama",)),
    ("bindings/steps.py", ("Steps",)),
    ("workflows/events.py", ("Started", "Progress", "Note", "Warned", "Finished")),
    ("workflows/status.py", ("Status",)),
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    """Print the page."""
    sys.stdout.write(page())


def page() -> str:
    """Return the page."""
    parts = ["# Python API", module_text(PACKAGE / "__init__.py")]
    for path, names in CHAPTERS:
        tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
        found = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        for name in names:
            parts += class_parts(found[name])
    parts += ["## Errors", module_text(PACKAGE / "errors" / "__init__.py")]
    return "\n\n".join(parts) + "\n"


def module_text(path: Path) -> str:
    """Return the docstring of a module as it stands."""
    return fenced(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")


def class_parts(node: ast.ClassDef) -> Iterator[str]:
    """Yield the heading of a class, what it says, and the same of its public methods."""
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    yield f"## `{node.name}`" + (f" ({bases})" if bases else "")
    yield fenced(ast.get_docstring(node) or "")
    if fields := [field_text(child) for child in node.body if isinstance(child, ast.AnnAssign)]:
        yield "\n".join(fields)
    for child in node.body:
        if isinstance(child, Function) and is_told(child):
            yield f"### `{node.name}.{shown_name(child)}`"
            yield fenced(signature(child) + "\n\n" + (ast.get_docstring(child) or ""))


def is_told(node: Function) -> bool:
    """Whether a method is public and says something."""
    public = not node.name.startswith("_") or node.name == "__init__"
    return public and (node.name == "__init__" or ast.get_docstring(node) is not None)


def shown_name(node: Function) -> str:
    """Return the name of a method, of a property without brackets."""
    return node.name if "property" in decorators(node) else f"{node.name}()"


def decorators(node: Function) -> list[str]:
    """Return the names of a function's decorators."""
    return [ast.unparse(each) for each in node.decorator_list]


def signature(node: Function) -> str:
    """Return the first line of a function, without the colon."""
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{kind} {node.name}({ast.unparse(node.args)}){returns}"


def field_text(node: ast.AnnAssign) -> str:
    """Return a field of a class as an item of a list."""
    value = f" = {ast.unparse(node.value)}" if node.value else ""
    return f"- `{ast.unparse(node.target)}: {ast.unparse(node.annotation)}{value}`"


def fenced(text: str) -> str:
    """Return text that keeps its lines."""
    return f"```text\n{inspect.cleandoc(text)}\n```"


if __name__ == "__main__":
    main()
