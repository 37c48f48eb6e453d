"""What is written down beside a download."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ggufcluster.core.download.listing import (
    Digest,
    Listing,
    PublishedFile,
    require_repository_name,
)
from ggufcluster.core.download.notes import (
    PartialNote,
    VerifiedNote,
    listing_to_json,
    read_listing,
    read_partial,
    read_verified,
)

SHA256 = Digest("sha256", "a" * 64)


def test_notes_come_back() -> None:
    """What is written is read again."""
    partial = PartialNote("c", 100, str(SHA256), ((0, 10), (20, 100)))
    verified = VerifiedNote("c", 100, str(SHA256), 5)
    listing = Listing(
        "a/b", "main", "c", (PublishedFile("x", 1, SHA256), PublishedFile("y", 2, None))
    )
    assert read_partial(partial.to_json()) == partial
    assert read_verified(verified.to_json()) == verified
    assert read_listing(listing_to_json(listing)) == listing


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"done": [[0, 101]]},
        {"done": [[10, 20], [0, 5]]},
        {"done": [[0, 10], [10, 20]]},
        {"done": [[-1, 5]]},
        {"done": [[5, 5]]},
        {"done": 3},
        {"size": None},
    ],
    ids=str,
)
def test_a_note_that_contradicts_itself_is_none(change: dict[str, Any]) -> None:
    """Spans outside the file, out of order or overlapping are not trusted."""
    good = json.loads(PartialNote("c", 100, "", ((0, 10),)).to_json())
    assert read_partial(json.dumps(good).encode()) is not None
    assert read_partial(json.dumps(good | change).encode()) is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"null", b"\xff", b'{"version": 1}'])
def test_damaged_notes_are_none(data: bytes) -> None:
    """Whatever a damaged file holds, it is no note."""
    assert read_partial(data) is None
    assert read_verified(data) is None
    assert read_listing(data) is None


@pytest.mark.parametrize("text", ["", "sha256:", "sha256:" + "g" * 64, "md5:" + "a" * 32])
def test_digests_are_checked(text: str) -> None:
    """Only known kinds with the right number of hex digits are digests."""
    with pytest.raises(ValueError, match="no digest"):
        Digest.parse(text)


@pytest.mark.parametrize("name", ["", "a", "a/b/c", "../b", "a/..", "https://h/a/b", "a b/c"])
def test_names_of_repositories(name: str) -> None:
    """A repository is OWNER/NAME and nothing else."""
    with pytest.raises(ValueError, match="OWNER/NAME"):
        require_repository_name(name)
    require_repository_name("me.too/Model-1_x")
