"""Progress and causes in the output of build tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufcluster.core.build_log import (
    DISK_FULL,
    EXCERPT_LINES,
    OUT_OF_MEMORY,
    BuildStep,
    failing_lines,
    parse_step,
)

DATA = Path(__file__).parent.parent / "data" / "build_logs"


def captured(name: str) -> tuple[str, ...]:
    """Return the excerpt of a captured log."""
    return failing_lines((DATA / f"{name}.txt").read_text().splitlines())


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("[19/238] Building CXX object ggml/src/x.cpp.o", BuildStep(19, 238)),
        ("[ 12%] Building CXX object ggml/src/x.cpp.o", BuildStep(12, 100)),
        ("[100%] Built target llama-server", BuildStep(100, 100)),
        ("-- The CXX compiler identification is GNU 12.2.0", None),
        ("note: [1/2] in the middle", None),
    ],
)
def test_step_is_read(line: str, step: BuildStep | None) -> None:
    """Counts of ninja and per cents of make are read, other lines are none."""
    assert parse_step(line) == step


def test_compile_error_keeps_source_line_and_caret() -> None:
    """The excerpt shows file, line and code, and leaves the command line out."""
    lines = captured("compile")

    assert any("bad.cpp:4:12: error: 'undeclared' was not declared" in line for line in lines)
    assert "    4 |     return undeclared + 1;" in lines
    assert not any("/usr/bin/c++" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("link", ["undefined reference to `missing()'", "ld returned 1 exit status"]),
        ("make", ["bad.cpp:3:24: error:", "make: ***"]),
        ("nvcc", ['k.cu(1): error: identifier "undefined_name"', "nvcc fatal"]),
        ("cmake", ["CMake Error at CMakeLists.txt:3", "FindNoSuchThing.cmake"]),
    ],
)
def test_every_tool_is_understood(name: str, words: list[str]) -> None:
    """Linker, make, nvcc and CMake errors are found in captured output."""
    text = "\n".join(captured(name))

    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("name", ["killed", "memory"])
def test_lack_of_memory_comes_first_with_advice(name: str) -> None:
    """A compiler that was killed or could not allocate leads to fewer jobs."""
    lines = captured(name)

    assert lines[0] == OUT_OF_MEMORY
    assert len(lines) > 1


def test_full_disk_is_said() -> None:
    """A full disk is the cause, whatever else went wrong after it."""
    log = ["x.cpp:1:1: fatal error: error writing to a.s: No space left on device"]

    assert failing_lines(log) == (DISK_FULL, log[0])


def test_unknown_failure_shows_the_end() -> None:
    """Without anything that looks like an error, the last lines are shown."""
    log = [f"line {number}" for number in range(50)]

    assert failing_lines(log)[-1] == "line 49"


def test_excerpt_is_short() -> None:
    """Hundreds of errors are cut to what fits a screen, the first ones kept."""
    log = [f"a.cpp:{number}:1: error: no" for number in range(300)]

    assert len(failing_lines(log)) == EXCERPT_LINES
    assert failing_lines(log)[0] == log[0]


def test_long_lines_are_cut() -> None:
    """A line with all output files of a step does not fill the screen."""
    [line] = failing_lines(["FAILED: " + "x" * 5000])

    assert len(line) < 300
