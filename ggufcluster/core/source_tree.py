"""Which files of llama.cpp the engine is built from."""

from __future__ import annotations

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
# The web interface is not built: only its CMake file is read.
_UI = "tools/ui/"


def is_needed(path: str) -> bool:
    """Tell whether a file is part of the build; `path` is relative to llama.cpp's root."""
    if path.startswith(_UI):
        return path == f"{_UI}CMakeLists.txt"
    return path.startswith(_KEPT) and not path.startswith(_DROPPED)
