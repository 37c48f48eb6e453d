"""CUDA architectures and the compilers for them."""

from __future__ import annotations

import pytest

from ggufcluster.core.cuda import (
    architectures_for,
    check_nvcc,
    cmake_architectures,
    parse_architecture,
)
from ggufcluster.errors import ToolchainError

NVCC = "/usr/local/cuda/bin/nvcc"


@pytest.mark.parametrize("text", ["121", "121a", "12.1", "sm_121", "compute_121", "121a-real"])
def test_every_common_spelling_is_understood(text: str) -> None:
    """Users may write an architecture as they know it."""
    assert parse_architecture(text) == "121"


@pytest.mark.parametrize("text", ["native", "blackwell", "", "1", "12345"])
def test_other_words_are_refused(text: str) -> None:
    """What names no architecture is refused, "native" too: it depends on who builds."""
    with pytest.raises(ToolchainError, match="no CUDA architecture"):
        parse_architecture(text)


def test_hopper_and_blackwell_get_their_specific_variant() -> None:
    """9.0 and 12.x need the `a` variant for their tensor cores; others stay as they are."""
    assert architectures_for(["121", "90", "121", "89", "120"]) == ("89", "90a", "120a", "121a")


def test_cmake_compiles_real_code_only() -> None:
    """CMake gets one entry per architecture, without code for others."""
    assert cmake_architectures(["90a", "121a"]) == "90a-real;121a-real"


@pytest.mark.parametrize(
    ("base", "version", "needs"),
    [
        ("121", "12.4", "needs 12.9 or newer"),
        ("121", "12.8", "needs 12.9 or newer"),
        ("120", "12.6", "needs 12.8 or newer"),
        ("90", "11.8", "needs 12.0 or newer"),
        ("89", "11.5", "needs 11.8 or newer"),
        ("86", "11.0", "needs 11.1 or newer"),
        ("70", "13.0", "CUDA 13.0 dropped it"),
    ],
)
def test_unfit_nvcc_is_named_with_what_is_needed(base: str, version: str, needs: str) -> None:
    """The message names version, place, architecture and the version to install."""
    with pytest.raises(ToolchainError) as caught:
        check_nvcc(base, version, path=NVCC)

    assert f"{version} at {NVCC} cannot compile for sm_{base}" in str(caught.value)
    assert needs in str(caught.value)


@pytest.mark.parametrize(
    ("base", "version"), [("121", "12.9"), ("121", "13.0"), ("120", "12.8"), ("70", "12.4")]
)
def test_fit_nvcc_passes(base: str, version: str) -> None:
    """The first release for an architecture, and later ones, are accepted."""
    check_nvcc(base, version, path=NVCC)


def test_list_of_nvcc_decides() -> None:
    """What nvcc itself lists counts more than our table."""
    check_nvcc("121", "12.4", path=NVCC, listed=("90", "121"))
    with pytest.raises(ToolchainError, match="sm_121"):
        check_nvcc("121", "13.0", path=NVCC, listed=("90", "120"))
