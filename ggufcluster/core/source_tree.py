"""Which files of llama.cpp the engine is built from."""

from __future__ import annotations

import hashlib

# The archive holds bindings, documents, vocabularies and ten backends besides; leaving them out
# saves time on this disk and on the way to a worker.
_KEPT = (
    "CMakeLists.txt",
    "LICENSE",
    "cmake/",
    "common/",
    "ggml/",
    "include/",
    "licenses/",
    "models/templates/",
    "scripts/ui-assets.cmake",
    "src/",
    "tests/",
    "tools/",
    "vendor/",
)
_BACKENDS = (
    "cann", "et", "hexagon", "hip", "metal", "musa", "opencl", "openvino", "sycl", "virtgpu",
    "vulkan", "webgpu", "zdnn", "zendnn",
)  # fmt: skip
_DROPPED = (
    *(f"ggml/src/ggml-{name}/" for name in _BACKENDS),
    "tests/snapshots/",
    "tools/server/bench/",
    "tools/server/tests/",
)
# The web interface is not built, but an empty one is made from these.
_UI = "tools/ui/"
_UI_KEPT = tuple(_UI + name for name in ("CMakeLists.txt", "ui.cpp.in", "ui.h.in"))

# Names this selection: a tree prepared by another version of ours may lack files.
SELECTION = hashlib.sha256("\n".join((*_KEPT, *_DROPPED, *_UI_KEPT)).encode()).hexdigest()[:8]


def is_needed(path: str) -> bool:
    """Tell whether a file is part of the build; `path` is relative to llama.cpp's root."""
    if path.startswith(_UI):
        return path in _UI_KEPT
    return path.startswith(_KEPT) and not path.startswith(_DROPPED)
