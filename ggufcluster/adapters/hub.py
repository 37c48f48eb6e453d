"""Ask a model hub for names, hashes and addresses; the only import of huggingface_hub.

HF_TOKEN, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and the rest are read by that package.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub import errors as hub_errors

from ggufcluster.adapters.http.body import words_of
from ggufcluster.core.download.listing import Digest, Listing, PublishedFile
from ggufcluster.core.http_answers import host_of, wait_seconds, wait_text
from ggufcluster.core.secret import Secret
from ggufcluster.errors import (
    AccessDeniedError,
    ConfigError,
    OfflineError,
    RemoteChangedError,
    RepositoryMissingError,
    RevisionMissingError,
    TransferError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEFAULT_ENDPOINT = "https://huggingface.co"
_TIMEOUT = 15.0
_TRIES = 5
_MOST_WAIT = 300.0
_NAMES_SHA256 = re.compile(r"[0-9a-f]{64}$")
_NAMES_SHA1 = re.compile(r"[0-9a-f]{40}$")


class Hub(Protocol):
    """What the downloader asks of a hub."""

    @property
    def endpoint(self) -> str:
        """Root address; the token is for its origin only."""

    @property
    def token(self) -> Secret | None:
        """Access token, if there is one."""

    @property
    def is_offline(self) -> bool:
        """Whether no request may be made."""

    def listing(self, repository: str, revision: str) -> Listing:
        """Return all files of a revision, pinned to its commit."""

    def address(self, listing: Listing, file: PublishedFile) -> str:
        """Return where the bytes of a file are to be had for now."""

    def cached(self, listing: Listing, file: PublishedFile) -> Path | None:
        """Return where the hub's own cache has a file, links resolved."""

    def cached_listing(self, repository: str, revision: str) -> Listing | None:
        """Return what the hub's own cache has of a revision."""


class HuggingFaceHub:
    """A `Hub` as huggingface.co is one, or a mirror of it.

    Args:
        endpoint: Root address; None as the environment says.
        token: Access token; None as the environment or the token file says.
        cache: Folder of the hub's own cache; None as the environment says.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        token: Secret | None = None,
        cache: Path | None = None,
    ) -> None:
        # A variable that is set to nothing is none.
        self._endpoint = (endpoint or constants.ENDPOINT or _DEFAULT_ENDPOINT).rstrip("/")
        found = None if token else huggingface_hub.get_token()
        if found and not (found.isascii() and found.isprintable()):
            raise ConfigError("has characters that no token has", source="HF_TOKEN")
        self._token = token or (Secret(found) if found else None)
        self._cache = cache or Path(constants.HF_HUB_CACHE)
        self._api = huggingface_hub.HfApi(
            endpoint=self.endpoint,
            token=self.token.reveal() if self.token else False,
            library_name="ggufcluster",
        )

    @property
    def endpoint(self) -> str:
        """Root address; the token is for its origin only."""
        return self._endpoint

    @property
    def token(self) -> Secret | None:
        """Access token, if there is one."""
        return self._token

    @property
    def is_offline(self) -> bool:
        """Whether HF_HUB_OFFLINE forbids every request."""
        return bool(constants.is_offline_mode())

    def listing(self, repository: str, revision: str) -> Listing:
        """Return all files of a revision, pinned to its commit.

        Raises:
            RepositoryMissingError: No such repository, or a private one.
            RevisionMissingError: No such revision.
            AccessDeniedError: It is gated, or the token is refused.
            TransferError: The hub cannot be reached.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                with self._words(repository, revision):
                    info = self._api.model_info(
                        repository, revision=revision, files_metadata=True, timeout=_TIMEOUT
                    )
                break
            except TransferError as error:
                _wait_or_raise(error, attempt)
        files = tuple(
            PublishedFile(
                f.rfilename, f.size or 0, _digest(f.lfs.sha256 if f.lfs else None, f.blob_id)
            )
            for f in info.siblings or ()
        )
        if info.sha is None:
            raise TransferError("names no commit", where=host_of(self.endpoint))
        return Listing(repository, revision, info.sha, files)

    def address(self, listing: Listing, file: PublishedFile) -> str:
        """Return where the bytes of a file are to be had for now; errors as `listing`.

        Raises:
            RemoteChangedError: The hub describes another file than the listing does.
        """
        with self._words(listing.repository, listing.commit):
            url = huggingface_hub.hf_hub_url(
                listing.repository, file.path, revision=listing.commit, endpoint=self.endpoint
            )
            found = huggingface_hub.get_hf_file_metadata(
                url, token=self.token.reveal() if self.token else False, timeout=_TIMEOUT
            )
        _require_same(listing, file, found)
        return str(found.location)

    def cached(self, listing: Listing, file: PublishedFile) -> Path | None:
        """Return where the hub's own cache has a file, links resolved."""
        found = huggingface_hub.try_to_load_from_cache(
            listing.repository, file.path, cache_dir=self._cache, revision=listing.commit
        )
        path = Path(found).resolve() if isinstance(found, str) else None
        # Another commit may hold the same bytes: blobs are named by their hash.
        if path is None and file.digest is not None:
            path = (self._folder(listing.repository) / "blobs" / file.digest.value).resolve()
        if path is None or not path.is_file() or path.stat().st_size != file.size:
            return None
        return path

    def cached_listing(self, repository: str, revision: str) -> Listing | None:
        """Return what the hub's own cache has of a revision; None if it has nothing of it."""
        folder = self._folder(repository)
        try:
            commit = (folder / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            commit = revision
        snapshot = folder / "snapshots" / commit
        if not snapshot.is_dir():
            return None
        files = tuple(
            PublishedFile(path.relative_to(snapshot).as_posix(), path.stat().st_size, _named(path))
            for path in sorted(snapshot.rglob("*"))
            if path.is_file()
        )
        return Listing(repository, revision, commit, files)

    def _folder(self, repository: str) -> Path:
        return self._cache / f"models--{repository.replace('/', '--')}"

    @contextmanager
    def _words(self, repository: str, revision: str) -> Iterator[None]:
        """Turn the errors of the hub's package into ours."""
        try:
            yield
        except hub_errors.GatedRepoError as error:
            reason = "wants its terms accepted by the owner of the token"
            raise AccessDeniedError(reason, where=repository, gated=True) from error
        except hub_errors.RevisionNotFoundError as error:
            raise RevisionMissingError(f"has no revision {revision}", where=repository) from error
        except hub_errors.RepositoryNotFoundError as error:
            hint = "the token does not open it" if self.token else "it is private: no token is set"
            reason = f"is not on {host_of(self.endpoint)}, or {hint}"
            raise RepositoryMissingError(reason, where=repository) from error
        except hub_errors.OfflineModeIsEnabled as error:
            raise OfflineError("HF_HUB_OFFLINE is set", where=repository) from error
        except hub_errors.HfHubHTTPError as error:
            raise self._refusal(error, repository, revision) from error
        except (OSError, ValueError, hub_errors.HFValidationError) as error:
            raise TransferError(_first_line(error), where=host_of(self.endpoint)) from error
        except Exception as error:
            # Its HTTP client is no dependency of ours, and its errors have no root of Python's.
            if type(error).__module__.partition(".")[0] not in {"httpx", "httpx2", "httpcore2"}:
                raise
            raise TransferError(_first_line(error), where=host_of(self.endpoint)) from error

    def _refusal(
        self, error: hub_errors.HfHubHTTPError, repository: str, revision: str
    ) -> AccessDeniedError | RepositoryMissingError | TransferError:
        answer = error.response
        status = answer.status_code
        if status in {401, 403}:
            reason = "the token is refused" if self.token else "it wants a token"
            return AccessDeniedError(f"{reason} ({status})", where=repository, gated=False)
        if status == 404 and not isinstance(error, hub_errors.EntryNotFoundError):
            # A mirror need not tell a wrong name from a wrong revision.
            reason = f"is not on {host_of(self.endpoint)}, or has no revision {revision}"
            return RepositoryMissingError(reason, where=repository)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        wait = wait_seconds(headers, now=time.time())
        return TransferError(
            f"answered {status} for {repository}{wait_text(wait)}",
            where=host_of(self.endpoint),
            status=status,
            wait=wait,
        )


def _wait_or_raise(error: TransferError, attempt: int) -> None:
    passing = error.status is None or error.status == 429 or error.status >= 500
    wait = error.wait if error.wait is not None else 2.0**attempt / 2
    if attempt == _TRIES or not passing or wait > _MOST_WAIT:
        raise error
    time.sleep(wait)


def _require_same(
    listing: Listing, file: PublishedFile, found: huggingface_hub.HfFileMetadata
) -> None:
    size_differs = found.size is not None and found.size != file.size
    etag = found.etag or ""
    sha256 = file.digest.value if file.digest and file.digest.kind == "sha256" else None
    hash_differs = bool(sha256 and _NAMES_SHA256.match(etag) and etag != sha256)
    moved = found.commit_hash not in {None, listing.commit}
    if size_differs or hash_differs or moved:
        reason = f"the hub describes another file than it lists at {listing.commit[:12]}"
        raise RemoteChangedError(reason, where=file.path)


def _digest(sha256: str | None, blob: str | None) -> Digest | None:
    if sha256 and _NAMES_SHA256.match(sha256):
        return Digest("sha256", sha256)
    return Digest("git-sha1", blob) if blob and _NAMES_SHA1.match(blob) else None


def _named(path: Path) -> Digest | None:
    """Read a digest from the name of the blob that a cached file is a link to."""
    name = path.readlink().name if path.is_symlink() else ""
    return _digest(name, name)


def _first_line(error: Exception) -> str:
    return words_of(error).strip().splitlines()[0]
