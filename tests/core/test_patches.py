"""Series, patch files and what git says about them."""

from __future__ import annotations

import pytest

from ggufcluster.core.patches import explain_failure, parse_patch, parse_series, shifted_hunks
from ggufcluster.errors import PatchError

PATCH = """Description: hook the handshake
 into the server
Forwarded: no

diff --git a/src/a.cpp b/src/a.cpp
--- a/src/a.cpp
+++ b/src/a.cpp
@@ -1,2 +1,3 @@
 int a;
+int b;
 int c;
--- a/old.txt\t2026-01-01
+++ /dev/null
@@ -1 +0,0 @@
-gone
"""

CONFLICT = """Checking patch src/a.cpp...
error: while searching for:
int a;

error: patch failed: src/a.cpp:7
error: src/a.cpp: patch does not apply
"""


def test_series_keeps_order_and_drops_comments() -> None:
    """Names come in order; comments and blank lines are no names."""
    assert parse_series("# order\nb.patch\n\na.patch  # why\n") == ("b.patch", "a.patch")


def test_patch_is_split_into_header_diff_and_files() -> None:
    """Header fields are joined over lines; a removed file counts as touched."""
    patch = parse_patch("hook.patch", PATCH)

    assert patch.header == {
        "Description": "hook the handshake into the server",
        "Forwarded": "no",
    }
    assert patch.diff.startswith("diff --git")
    assert patch.files == ("src/a.cpp", "old.txt")


def test_file_without_diff_is_refused() -> None:
    """A patch file that holds only prose is named."""
    with pytest.raises(PatchError, match=r"empty\.patch"):
        parse_patch("empty.patch", "Description: nothing yet\n")


@pytest.mark.parametrize(
    ("stderr", "file", "reason"),
    [
        (
            CONFLICT,
            "src/a.cpp",
            "line 7",
        ),
        ("error: src/b.cpp: No such file or directory\n", "src/b.cpp", "No such file"),
        ("error: corrupt patch at line 9\n", "its files", "corrupt patch at line 9"),
        ("", "its files", "no reason"),
    ],
)
def test_failure_names_file_and_reason(stderr: str, file: str, reason: str) -> None:
    """What git prints becomes the file concerned and the reason."""
    assert explain_failure(stderr)[0] == file
    assert reason in explain_failure(stderr)[1]


def test_shifted_hunks_are_found() -> None:
    """A hunk that git applied at another line than written is reported with its file."""
    output = (
        "Checking patch src/a.cpp...\nChecking patch src/b.cpp...\n"
        "Hunk #2 succeeded at 45 (offset -3 lines).\nApplied patch src/a.cpp cleanly.\n"
    )

    assert shifted_hunks(output) == (("src/b.cpp", "hunk 2 fits only -3 lines away"),)
