"""The branch of the exception tree for model files that come over the network."""

from __future__ import annotations

from ggufcluster.errors.root import GgufClusterError


class DownloadError(GgufClusterError):
    """A file could not be downloaded; `where` is a repository, file or host."""

    def __init__(self, reason: str, *, where: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.reason = reason
        self.where = where


class TransferError(DownloadError):
    """A server cannot be reached, refuses or breaks off.

    `status` is the HTTP status or None, `wait` the seconds that the server asks to wait or None.
    """

    def __init__(
        self, reason: str, *, where: str, status: int | None = None, wait: float | None = None
    ) -> None:
        super().__init__(reason, where=where)
        self.status = status
        self.wait = wait


class OfflineError(DownloadError):
    """The network is switched off and not everything is here."""


class AccessDeniedError(DownloadError):
    """The repository is gated, or the token does not open it; `gated` tells which."""

    def __init__(self, reason: str, *, where: str, gated: bool) -> None:
        super().__init__(reason, where=where)
        self.gated = gated


class RepositoryMissingError(DownloadError):
    """There is no such repository, or it is private and no token opens it."""


class RevisionMissingError(DownloadError):
    """The repository has no such branch, tag or commit."""


class RevisionMovedError(DownloadError):
    """What is here belongs to another commit; `ours` names that commit, if it is known."""

    def __init__(self, reason: str, *, where: str, ours: str | None) -> None:
        super().__init__(reason, where=where)
        self.ours = ours


class FileChoiceError(DownloadError):
    """No file, or more than one model, is what was asked for; `choices` are those there are."""

    def __init__(self, reason: str, *, where: str, choices: tuple[str, ...]) -> None:
        listed = f"; there are: {', '.join(choices)}" if choices else ""
        super().__init__(f"{reason}{listed}", where=where)
        self.choices = choices


class UnsafeNameError(DownloadError):
    """A published name would leave the folder."""


class ShardSetError(DownloadError):
    """The shards are not one complete set."""


class RangesIgnoredError(DownloadError):
    """The server sends whole files where parts were asked for."""


class RemoteChangedError(DownloadError):
    """The published file changed while it was downloaded."""


class ChecksumError(DownloadError):
    """The bytes that arrived are not the published ones; `kept` is where they lie."""

    def __init__(self, *, where: str, expected: str, got: str, kept: str) -> None:
        super().__init__(
            f"SHA-256 is {got}, published is {expected}; set aside as {kept}", where=where
        )
        self.expected = expected
        self.got = got
        self.kept = kept


class DownloadBusyError(DownloadError):
    """Another process downloads the same file."""
