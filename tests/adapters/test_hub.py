"""Names, hashes and addresses from a hub."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.hub import HuggingFaceHub
from ggufcluster.core.download.listing import Digest, PublishedFile
from ggufcluster.core.secret import Secret
from ggufcluster.errors import (
    AccessDeniedError,
    ConfigError,
    RemoteChangedError,
    RepositoryMissingError,
    TransferError,
)
from ggufcluster.testing import Fault, HubServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPO = "me/model"


@pytest.fixture
def server() -> Iterator[HubServer]:
    """A hub with one large and one small file."""
    with HubServer() as running:
        files = {"a/m.gguf": b"weights", "README.md": b"hello\n"}
        running.publish(REPO, files, plain=("README.md",))
        yield running


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> HuggingFaceHub:
    """A client of it."""
    return HuggingFaceHub(endpoint=server.root + "/", cache=tmp_path)


def test_a_listing_has_all_in_one_request(server: HubServer, hub: HuggingFaceHub) -> None:
    """Sizes and hashes of all files come with the commit, whichever way they are stored."""
    listing = hub.listing(REPO, "main")
    assert listing.commit == server.commit(REPO, "main")
    assert listing.files == (
        PublishedFile("a/m.gguf", 7, Digest("sha256", hashlib.sha256(b"weights").hexdigest())),
        PublishedFile(
            "README.md", 6, Digest("git-sha1", "ce013625030ba8dba906f756967f9e9ca394464a")
        ),
    )
    assert len(server.asked) == 1


def test_an_address_is_asked_for_by_commit(server: HubServer, hub: HuggingFaceHub) -> None:
    """A branch that moves after the listing does not change what is fetched."""
    listing = hub.listing(REPO, "main")
    server.publish(REPO, {"a/m.gguf": b"others!"})
    url = hub.address(listing, listing.files[0])
    assert url.startswith(server.files_root)
    assert listing.commit in url


@pytest.mark.parametrize(
    "other", [{"size": 8}, {"digest": Digest("sha256", "0" * 64)}], ids=["size", "digest"]
)
def test_another_file_than_listed_is_noticed(hub: HuggingFaceHub, other: dict[str, object]) -> None:
    """Size and hash that come with the address must be those of the listing."""
    listing = hub.listing(REPO, "main")
    wrong = replace(listing.files[0], **other)  # type: ignore[arg-type]
    with pytest.raises(RemoteChangedError):
        hub.address(listing, wrong)


def test_refusals_are_told_apart(server: HubServer, hub: HuggingFaceHub) -> None:
    """A gated file, a refused request and a broken hub are different errors."""
    listing = hub.listing(REPO, "main")
    file = listing.files[0]
    server.fail(Fault("status", origin="hub", status=403))
    with pytest.raises(AccessDeniedError) as refused:
        hub.address(listing, file)
    server.fail(Fault("status", origin="hub", status=500))
    with pytest.raises(TransferError) as broken:
        hub.address(listing, file)
    server.gated.add(REPO)
    with pytest.raises(AccessDeniedError) as gated:
        hub.address(listing, file)
    assert (refused.value.gated, gated.value.gated, broken.value.status) == (False, True, 500)


def test_a_mirror_that_only_says_not_found(server: HubServer, hub: HuggingFaceHub) -> None:
    """Without the hub's own words, name and revision are both told, and it is not asked again."""
    server.fail(Fault("status", origin="hub", status=404, times=None))
    with pytest.raises(RepositoryMissingError, match="or has no revision v9"):
        hub.listing(REPO, "v9")
    assert len([one for one in server.asked if "/revision/" in one.path]) == 1


def test_a_revision_may_have_a_path(server: HubServer, hub: HuggingFaceHub) -> None:
    """Such as the head of a pull request."""
    commit = server.publish(REPO, {"a.gguf": b"x"}, revision="refs/pr/1")
    assert hub.listing(REPO, "refs/pr/1").commit == commit


def test_a_token_that_can_be_none_is_refused_at_once(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request could carry it, and it is shown nowhere."""
    monkeypatch.setenv("HF_TOKEN", "hf_t\N{LATIN SMALL LETTER O WITH DIAERESIS}ken")
    with pytest.raises(ConfigError, match=r"^HF_TOKEN: has characters that no token has$"):
        HuggingFaceHub(endpoint=server.root, cache=tmp_path)


def test_a_hub_that_is_busy_is_asked_again(
    server: HubServer, hub: HuggingFaceHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that pass are met with patience; a wait of hours is not sat out in silence."""
    waits: list[float] = []
    monkeypatch.setattr("ggufcluster.adapters.hub.time.sleep", waits.append)
    server.fail(Fault("status", origin="hub", status=503, times=2))
    hub.listing(REPO, "main")
    assert len(waits) == 2
    server.fail(Fault("status", origin="hub", status=429, headers={"Retry-After": "86400"}))
    with pytest.raises(TransferError) as caught:
        hub.listing(REPO, "main")
    assert caught.value.wait == 86400
    assert len(waits) == 2


def test_the_token_shows_nowhere(server: HubServer, tmp_path: Path) -> None:
    """Neither the client's own text nor an error holds the token."""
    hub = HuggingFaceHub(endpoint=server.root, token=Secret("hf_wrong"), cache=tmp_path)
    with pytest.raises(AccessDeniedError) as caught:
        hub.listing(REPO, "main")
    assert "hf_wrong" not in f"{caught.value} {hub.token} {hub.__dict__['_token']}"
