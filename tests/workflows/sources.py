"""A small upstream of the right shape: archive, pin, patches, overlay."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.paths import HostPaths

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "9.9.9"
TREE = {
    "CMakeLists.txt": "project(x)\n",
    "LICENSE": "free\n",
    "ggml/src/ggml.c": "int one;\nint two;\nint three;\nint four;\nint five;\n",
    "src/llama.cpp": "int a;\nint b;\nint c;\n",
    "docs/readme.md": "not needed\n",
}
HOOK = """Description: add a hook

--- a/ggml/src/ggml.c
+++ b/ggml/src/ggml.c
@@ -2,2 +2,3 @@
 int two;
+int hook;
 int three;
"""
SECOND = """Description: build on the hook

--- a/ggml/src/ggml.c
+++ b/ggml/src/ggml.c
@@ -3,2 +3,3 @@
 int hook;
+int second;
 int three;
"""


def host_paths(root: Path) -> HostPaths:
    """Return folders under a temporary one."""
    return HostPaths(*(PurePosixPath(root / name) for name in ("cache", "state", "config", "data")))


def make_archive(path: Path, tree: Mapping[str, str] = TREE) -> Path:
    """Write a source archive that carries a llama.cpp tree."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in tree.items():
            info = tarfile.TarInfo(f"llama_cpp_python-{VERSION}/vendor/llama.cpp/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def make_vendor(
    folder: Path,
    archive: Path,
    *,
    patches: Mapping[str, str] | None = None,
    overlay: Mapping[str, str] | None = None,
) -> Path:
    """Write a vendor folder that pins an archive."""
    patches = {"hook.patch": HOOK} if patches is None else patches
    texts = {
        "UPSTREAM": (
            f'llama_cpp_python = "{VERSION}"\n'
            f'sdist_sha256 = "{hashlib.sha256(archive.read_bytes()).hexdigest()}"\n'
            'commit = "abc"\nsdist_subdir = "vendor/llama.cpp"\n'
        ),
        "series": "\n".join(patches),
        **{f"patches/{name}": text for name, text in patches.items()},
        **{f"overlay/{name}": text for name, text in (overlay or {}).items()},
    }
    write_texts(folder, texts)
    return folder


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write text files under a folder."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
