"""Which files the engine is built from."""

from __future__ import annotations

import pytest

from ggufcluster.core.source_tree import is_needed


@pytest.mark.parametrize(
    "path",
    [
        "CMakeLists.txt",
        "ggml/src/ggml-rpc/ggml-rpc.cpp",
        "ggml/src/ggml-cuda/template-instances/mmq-instance-q8_0.cu",
        "models/templates/MiniMax-M3.jinja",
        "scripts/ui-assets.cmake",
        "tests/test-backend-ops.cpp",
        "tools/ui/CMakeLists.txt",
        "tools/ui/ui.h.in",
        "vendor/cpp-httplib/LICENSE",
    ],
)
def test_build_files_are_kept(path: str) -> None:
    """What CMake reads is kept."""
    assert is_needed(path)


@pytest.mark.parametrize(
    "path",
    [
        "docs/build.md",
        "examples/simple/simple.cpp",
        "ggml/src/ggml-vulkan/ggml-vulkan.cpp",
        "models/ggml-vocab-gpt-2.gguf",
        "tools/ui/src/app.html",
        ".git/config",
    ],
)
def test_the_rest_is_left_out(path: str) -> None:
    """Documents, other backends, vocabularies and the web interface are left out."""
    assert not is_needed(path)
