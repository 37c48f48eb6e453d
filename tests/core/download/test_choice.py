"""Which files of a repository are one model."""

from __future__ import annotations

import pytest

from ggufcluster.core.download.choice import choose, first_shards, model_files, quant_of, quants
from ggufcluster.core.download.listing import Listing, PublishedFile
from ggufcluster.errors import FileChoiceError, ShardSetError, UnsafeNameError


def listing(*paths: str) -> Listing:
    """Return a listing of files with these paths."""
    files = tuple(PublishedFile(path, 1, None) for path in paths)
    return Listing("me/model", "main", "c", files)


FOLDERS = listing(
    "README.md",
    "UD-IQ4_XS/M3-UD-IQ4_XS-00001-of-00002.gguf",
    "UD-IQ4_XS/M3-UD-IQ4_XS-00002-of-00002.gguf",
    "BF16/M3-BF16-00001-of-00001.gguf",
    "M3-Q4_K_M.gguf",
    "mmproj-F16.gguf",
    "imatrix_unsloth.gguf",
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("M3-UD-IQ4_XS-00001-of-00005.gguf", "UD-IQ4_XS"),
        ("a/m.Q4_K_M.gguf", "Q4_K_M"),
        ("m-q8_0.gguf", "q8_0"),
        ("MXFP4_MOE/model-00001-of-00002.gguf", "MXFP4_MOE"),
        ("m-IQ3_S.gguf", "IQ3_S"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("m-bf16.gguf", "bf16"),
        ("weights.gguf", "weights"),
    ],
)
def test_names_of_quantisations(path: str, name: str) -> None:
    """The quantisation is told by the name, else by the folder, else it is the name itself."""
    assert quant_of(path) == name


def test_models_by_quantisation() -> None:
    """Projectors and importance matrices are no models; shards belong together."""
    assert len(model_files(FOLDERS)) == 4
    assert {name: len(files) for name, files in quants(FOLDERS).items()} == {
        "UD-IQ4_XS": 2,
        "BF16": 1,
        "Q4_K_M": 1,
    }


def test_a_quantisation_is_chosen_in_any_case() -> None:
    """All shards of the set come, in order."""
    chosen = choose(FOLDERS, quant="ud-iq4_xs")
    assert [file.path[-19:] for file in chosen] == [
        "-00001-of-00002.gguf"[1:],
        "00002-of-00002.gguf",
    ]
    assert first_shards(chosen) == ("UD-IQ4_XS/M3-UD-IQ4_XS-00001-of-00002.gguf",)


def test_several_models_begin_with_a_file_each() -> None:
    """A pattern may fit more than one set; what lies beside models is none."""
    names = ("b-Q4_0-00001-of-00002.gguf", "b-Q4_0-00002-of-00002.gguf", "a-Q8_0.GGUF")
    chosen = choose(listing(*names, "mmproj-F16.gguf", "README.md"), include="*")
    assert first_shards(chosen) == ("a-Q8_0.GGUF", "b-Q4_0-00001-of-00002.gguf")


@pytest.mark.parametrize(
    "name", ["mmproj-F16.gguf", "a-mmproj-f16.gguf", "imatrix.gguf", "a.imatrix.gguf"]
)
def test_what_lies_beside_a_model_is_none(name: str) -> None:
    """Projectors and matrices are no choice, and do not make one necessary."""
    there = listing(name, "m-imatrix-Q4_0.GGUF")
    assert list(quants(there)) == ["Q4_0"]
    assert [file.path for file in choose(there)] == ["m-imatrix-Q4_0.GGUF"]


@pytest.mark.parametrize("tail", [".part1of2", "-split-a"])
def test_pieces_of_a_file_are_told_from_no_model(tail: str) -> None:
    """Uploads that were cut without GGUF's own shards can be fetched, but not run."""
    there = listing(f"m.Q8_0.gguf{tail}", f"m.Q8_0.gguf{tail}x")
    with pytest.raises(FileChoiceError, match=r"only pieces .* m.Q8_0.gguf"):
        choose(there)
    assert len(choose(there, include="*Q8_0*")) == 2


def test_a_lone_model_needs_no_choice() -> None:
    """Without a choice the only model is taken, and more than one are listed."""
    assert [file.path for file in choose(listing("README.md", "m.gguf"))] == ["m.gguf"]
    with pytest.raises(FileChoiceError) as caught:
        choose(FOLDERS)
    assert caught.value.choices == ("UD-IQ4_XS", "BF16", "Q4_K_M")


def test_patterns() -> None:
    """A pattern fits whole paths, or bare names if it has no slash."""
    assert len(choose(FOLDERS, include="UD-IQ4_XS/*")) == 2
    assert [f.path for f in choose(FOLDERS, include="*BF16*.gguf")] == [FOLDERS.files[3].path]
    assert [f.path for f in choose(FOLDERS, include="README.md")] == ["README.md"]


@pytest.mark.parametrize(
    ("there", "wanted"),
    [
        (["m-Q4_0-00001-of-00003.gguf", "m-Q4_0-00003-of-00003.gguf"], {"quant": "Q4_0"}),
        (["m-Q4_0-00001-of-00002.gguf", "m-Q4_0-00002-of-00002.gguf"], {"include": "*00001*"}),
        (["m-Q4_0-00005-of-00002.gguf"], {"quant": "Q4_0"}),
    ],
)
def test_a_set_must_be_complete(there: list[str], wanted: dict[str, str]) -> None:
    """Sets with missing or impossible shards are refused, whoever left them out."""
    with pytest.raises(ShardSetError):
        choose(listing(*there), **wanted)


def test_two_sets_of_one_quantisation_are_not_mixed() -> None:
    """Shards of another set under the same quantisation make the choice unclear."""
    sets = (
        "m-Q4_0-00001-of-00002.gguf",
        "m-Q4_0-00002-of-00002.gguf",
        "m-Q4_0-00001-of-00001.gguf",
    )
    with pytest.raises(FileChoiceError, match="2 models called Q4_0"):
        choose(listing(*sets), quant="Q4_0")


@pytest.mark.parametrize(
    "path", ["/m.gguf", "a//m.gguf", "./m.gguf", "..\\m.gguf", "a/\n.gguf", "x" * 300 + ".gguf"]
)
def test_unsafe_names(path: str) -> None:
    """A name that leaves the folder, or is none, is refused."""
    with pytest.raises(UnsafeNameError):
        choose(listing(path), include="*")
