"""The patch series is documented as its headers say, and the headers say the truth."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

VENDOR = Path(__file__).parents[2] / "vendor" / "llama.cpp"
FIELDS = (
    "Subject",
    "Description",
    "Drop-When",
    "Forwarded",
    "Upstream-Lines",
    "Upstream-Files",
)
TABLE = re.compile(r"<!-- patches -->\n(.*)<!-- /patches -->", re.DOTALL)
MAXIMUM_ADDED_LINES = 140


@dataclass(frozen=True, slots=True)
class Patch:
    """One file of `patches/`: its header fields, unfolded, and its diff."""

    name: str
    fields: dict[str, str]
    diff: str

    @property
    def files(self) -> list[str]:
        """List the upstream files of the diff."""
        return re.findall(r"^\+\+\+ b/(.+)$", self.diff, re.MULTILINE)

    def lines(self, signs: str) -> int:
        """Count the changed lines that begin with one of `signs`, file names left out."""
        hunks = re.sub(r"^(---|\+\+\+) [ab]/.*\n", "", self.diff, flags=re.MULTILINE)
        return sum(line[:1] in signs for line in hunks.splitlines() if line)


def read_patch(path: Path) -> Patch:
    """Split a patch into header fields and diff."""
    header, _, diff = path.read_text(encoding="utf-8").partition("\n\n")
    unfolded = re.sub(r"\n ", " ", header)
    fields = dict(line.split(": ", 1) for line in unfolded.splitlines())
    return Patch(path.name, fields, diff)


def series() -> list[str]:
    """List the patch names in apply order."""
    lines = (VENDOR / "series").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def patches() -> list[Patch]:
    """Read the whole series."""
    return [read_patch(VENDOR / "patches" / name) for name in series()]


def table(listed: list[Patch]) -> str:
    """Render the table that README.md carries between its markers."""
    rows = ["| patch | what it does | upstream lines | dropped when |", "|---|---|---|---|"]
    for patch in listed:
        fields = patch.fields
        rows.append(
            f"| `{patch.name}` | {fields['Subject']}. {fields['Description']} "
            f"| {fields['Upstream-Lines']} in {fields['Upstream-Files']} "
            f"| {fields['Drop-When']} |"
        )
    return "\n".join(rows) + "\n"


def overlay_files() -> list[str]:
    """List our own files by their place in the tree."""
    overlay = VENDOR / "overlay"
    return [str(path.relative_to(overlay)) for path in overlay.rglob("*") if path.is_file()]


def test_series_lists_every_patch_once() -> None:
    """The series names each file of patches/ exactly once and nothing else."""
    present = [path.name for path in (VENDOR / "patches").iterdir()]

    assert sorted(series()) == sorted(present)


@pytest.mark.parametrize("name", series())
def test_header_has_exactly_the_agreed_fields(name: str) -> None:
    """A header states each field once, in order, with a value."""
    patch = read_patch(VENDOR / "patches" / name)

    assert tuple(patch.fields) == FIELDS
    assert all(patch.fields.values())
    assert patch.fields["Forwarded"] == "no" or patch.fields["Forwarded"].startswith("https://")


@pytest.mark.parametrize("name", series())
def test_header_counts_agree_with_the_diff(name: str) -> None:
    """Upstream-Lines counts the added and removed lines, Upstream-Files the files touched."""
    patch = read_patch(VENDOR / "patches" / name)

    assert int(patch.fields["Upstream-Lines"]) == patch.lines("+-") > 0
    assert patch.fields["Upstream-Files"].split(", ") == patch.files


@pytest.mark.parametrize("name", series())
def test_patch_carries_one_line_of_context(name: str) -> None:
    """A hunk opens and closes with at most one unchanged line and names no function."""
    patch = read_patch(VENDOR / "patches" / name)
    hunks = re.split(r"^@@ .*\n", patch.diff, flags=re.MULTILINE)[1:]

    assert re.findall(r"^@@ -\S+ \+\S+ @@.+$", patch.diff, re.MULTILINE) == []
    for hunk in hunks:
        lines = re.sub(r"^--- a/.*\n\+\+\+ b/.*\n", "", hunk, flags=re.MULTILINE).splitlines()
        assert any(line[:1] in "+-" for line in lines[:2] if line)
        assert any(line[:1] in "+-" for line in lines[-2:] if line)


def test_series_stays_within_its_budget() -> None:
    """Logic belongs in the overlay, so the whole series adds few lines to upstream files."""
    assert sum(patch.lines("+") for patch in patches()) <= MAXIMUM_ADDED_LINES


def test_no_patch_touches_an_overlay_file() -> None:
    """A file is either upstream's, and patched, or ours, and in the overlay."""
    touched = {name for patch in patches() for name in patch.files}

    assert touched.isdisjoint(overlay_files())


def test_every_overlay_source_is_built() -> None:
    """Each C++ file of the overlay is named in overlay.cmake; CUDA files are globbed upstream."""
    cmake = (VENDOR / "overlay" / "ggufcluster" / "overlay.cmake").read_text(encoding="utf-8")
    sources = [name for name in overlay_files() if name.endswith(".cpp")]

    assert sources
    assert [name for name in sources if name.removeprefix("ggml/") not in cmake] == []


def test_readme_table_is_in_step_with_the_headers() -> None:
    """The table between the markers in README.md is the one the headers give."""
    readme = (VENDOR / "README.md").read_text(encoding="utf-8")
    found = TABLE.search(readme)

    assert found is not None
    assert found.group(1) == table(patches())


def test_pin_names_source_and_hash() -> None:
    """UPSTREAM holds the version, a SHA-256, a commit and a relative path, and no more."""
    pin = tomllib.loads((VENDOR / "UPSTREAM").read_text(encoding="utf-8"))

    assert set(pin) == {"llama_cpp_python", "sdist_sha256", "commit", "sdist_subdir"}
    assert re.fullmatch(r"[0-9a-f]{64}", pin["sdist_sha256"])
    assert re.fullmatch(r"[0-9a-f]{7,40}", pin["commit"])
    assert not Path(pin["sdist_subdir"]).is_absolute()
