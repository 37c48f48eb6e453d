"""What two machines must share to share a binary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ggufcluster.core.machine import Machine, parse_cpu_features, parse_libc

SPARK = Machine("aarch64", "glibc 2.39", frozenset({"sve2", "i8mm"}), cuda_major=13)


def test_only_instruction_sets_count() -> None:
    """Flags that a kernel or microcode update brings do not make another machine."""
    old = parse_cpu_features("flags\t\t: fpu vme avx2 fma bmi2 smep ibrs\n")
    new = parse_cpu_features("flags\t\t: fpu vme avx2 fma bmi2 smep ibrs ibpb stibp user_shstk\n")

    assert old == new == {"avx2", "fma", "bmi2"}


def test_features_are_those_of_every_core() -> None:
    """On a machine with two kinds of core, only what both can do counts."""
    text = "Features\t: fp asimd sve2 i8mm\nFeatures\t: fp asimd i8mm\n"

    assert parse_cpu_features(text) == {"fp", "asimd", "i8mm"}


def test_unreadable_cpu_has_no_features() -> None:
    """Without flag lines the set is empty rather than an error."""
    assert parse_cpu_features("") == frozenset()


def test_libc_may_be_missing() -> None:
    """A host without glibc differs from every host with it."""
    assert parse_libc("glibc 2.36\n") == "glibc 2.36"
    assert parse_libc("") == "no glibc"


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (replace(SPARK, architecture="x86_64"), "x86_64"),
        (replace(SPARK, libc="glibc 2.35"), "glibc 2.35"),
        (replace(SPARK, cuda_major=12), "CUDA 12"),
        (replace(SPARK, cpu_features=frozenset({"i8mm"})), "sve2"),
    ],
)
def test_differences_are_named(other: Machine, word: str) -> None:
    """Each fact that forbids a copy is named with the worker's value."""
    assert word in SPARK.differences(other, native=True, cuda=True)[0]


def test_irrelevant_differences_do_not_count() -> None:
    """A portable CPU engine asks neither for the same CPU nor for CUDA."""
    other = replace(SPARK, cpu_features=frozenset(), cuda_major=None)

    assert SPARK.differences(other, native=False, cuda=False) == ()
