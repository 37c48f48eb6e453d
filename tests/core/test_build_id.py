"""Pin, fingerprint and build id."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ggufcluster.core.build_id import (
    Backend,
    BuildOptions,
    build_id,
    fingerprint,
    parse_pin,
)
from ggufcluster.core.machine import Machine
from ggufcluster.core.patches import Patch
from ggufcluster.core.recipe import SETTINGS
from ggufcluster.errors import SourceError

UPSTREAM = """
llama_cpp_python = "0.3.36"  # a comment
sdist_sha256 = "aa"
commit = "0c1e57098"
sdist_subdir = "vendor/llama.cpp"
"""
SPARK = Machine("aarch64", "glibc 2.39", frozenset({"sve2", "i8mm"}), cuda_major=13)
CUDA = BuildOptions(Backend.CUDA, ("121a",), rdma=True)
ONE = Patch("one.patch", {"Description": "first"}, "--- a/x\n+++ b/x\n@@ 1\n", ("x",))
TWO = Patch("two.patch", {}, "--- a/y\n+++ b/y\n@@ 2\n", ("y",))


def test_pin_names_archive() -> None:
    """The pin names the archive as the package index does."""
    pin = parse_pin(UPSTREAM)

    assert pin.archive_name == "llama_cpp_python-0.3.36.tar.gz"
    assert pin.origin == "sdist:aa:vendor/llama.cpp"


@pytest.mark.parametrize("text", ["commit = ", 'commit = "x"'])
def test_malformed_pin_is_refused(text: str) -> None:
    """A pin that is no TOML, or lacks a key, is a SourceError."""
    with pytest.raises(SourceError, match="UPSTREAM"):
        parse_pin(text)


def test_fingerprint_is_sixteen_hex_digits() -> None:
    """The engine's CMake code accepts 16 lower-case hex digits and nothing else."""
    assert re.fullmatch(r"[0-9a-f]{16}", fingerprint("sdist:aa", (ONE,), {"a.h": b"1"}))


@pytest.mark.parametrize(
    "other",
    [
        fingerprint("sdist:bb", (ONE, TWO), {"a.h": b"1"}),
        fingerprint("sdist:aa", (TWO, ONE), {"a.h": b"1"}),
        fingerprint("sdist:aa", (ONE,), {"a.h": b"1"}),
        fingerprint("sdist:aa", (ONE, TWO), {"a.h": b"2"}),
        fingerprint("sdist:aa", (ONE, TWO), {"b.h": b"1"}),
        fingerprint("sdist:aa", (ONE, TWO), {"a.h": b"1", "b.h": b""}),
    ],
)
def test_fingerprint_covers_pin_order_and_overlay(other: str) -> None:
    """A change of pin, of patch order or contents, or of an overlay file changes it."""
    assert fingerprint("sdist:aa", (ONE, TWO), {"a.h": b"1"}) != other


def test_fingerprint_ignores_what_changes_no_binary() -> None:
    """A reworded patch header and the order of overlay files leave it alone."""
    reworded = replace(ONE, name="renamed.patch", header={"Description": "better words"})

    assert fingerprint("o", (ONE,), {"a": b"1", "b": b"2"}) == fingerprint(
        "o", (reworded,), {"b": b"2", "a": b"1"}
    )


def test_build_id_is_readable() -> None:
    """The id starts with fingerprint, backend, architectures and machine."""
    cpu = BuildOptions(Backend.CPU)

    assert re.fullmatch(r"f00d-cuda-121a-aarch64-[0-9a-f]{8}", build_id("f00d", CUDA, SPARK))
    assert re.fullmatch(r"f00d-cpu-aarch64-[0-9a-f]{8}", build_id("f00d", cpu, SPARK))


@pytest.mark.parametrize(
    ("options", "machine"),
    [
        (CUDA, replace(SPARK, libc="glibc 2.40")),
        (CUDA, replace(SPARK, cuda_major=12)),
        (CUDA, replace(SPARK, cpu_features=frozenset({"sve2"}))),
        (replace(CUDA, rdma=False), SPARK),
        (replace(CUDA, native=False), SPARK),
        (replace(CUDA, architectures=("120a", "121a")), SPARK),
    ],
)
def test_build_id_tells_apart_what_cannot_share_a_binary(
    options: BuildOptions, machine: Machine
) -> None:
    """Another libc, CUDA major, CPU, RDMA choice or architecture is another build."""
    assert build_id("f00d", options, machine) != build_id("f00d", CUDA, SPARK)


def test_cpu_engine_does_not_depend_on_cuda() -> None:
    """A CPU engine keeps its id when a CUDA toolkit is installed, a portable one on any CPU."""
    cpu = BuildOptions(Backend.CPU)
    portable = BuildOptions(Backend.CPU, native=False)
    plain = replace(SPARK, cpu_features=frozenset())

    assert build_id("f", cpu, SPARK) == build_id("f", cpu, replace(SPARK, cuda_major=None))
    assert build_id("f", portable, SPARK) == build_id("f", portable, plain)


def test_changed_recipe_is_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine made with other CMake settings is not taken for a current one."""
    before = build_id("f", CUDA, SPARK)
    monkeypatch.setitem(SETTINGS, "GGML_RPC", "OFF")

    assert build_id("f", CUDA, SPARK) != before
