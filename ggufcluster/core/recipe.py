"""What every engine has in common: CMake settings and targets.

They enter the build id, so that an engine of an older recipe is not taken for a current one.
"""

from __future__ import annotations

TARGETS = (
    "llama-server",
    "ggml-rpc-server",
    "llama-bench",
    "llama-perplexity",
    "llama-quantize",
    "llama-gguf-split",
    "test-backend-ops",
    "ggufcluster-msa-agreement",
    "ggufcluster-tool-calls",
    "ggufcluster-dialects",
)

SETTINGS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    # Binaries get their final search path at once: nothing is installed, files are copied.
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
    "GGML_RPC": "ON",
    # ggml would also take sccache, whose daemon would inherit and keep the build lock.
    "GGML_CCACHE": "OFF",
    # One GPU a node; with NCCL a copied engine would need that library on every worker.
    "GGML_CUDA_NCCL": "OFF",
    "LLAMA_BUILD_TESTS": "ON",  # test-backend-ops
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # it would be downloaded
    "LLAMA_OPENSSL": "OFF",
}
