"""Every exception that ggufcluster raises on purpose.

::

    GgufClusterError
    ├── ConfigError                 a setting is unknown, malformed or contradictory
    ├── LocalFileError              a file or folder of this machine cannot be used
    ├── RecordError                 the record of the cluster is damaged
    ├── ToolFileError               a file of tools for the chat cannot be used
    ├── EngineError
    │   ├── SourceError             the pinned source cannot be had or is not the pinned one
    │   ├── PatchError              a patch of the series does not apply
    │   ├── ToolchainError          compiler, cmake or nvcc is missing or too old
    │   ├── BuildError              compiling failed
    │   ├── EngineMissingError      no engine is built for this machine
    │   └── EngineMismatchError     engine and Python bindings are not of one llama.cpp
    ├── HostError
    │   ├── HostUnreachableError    no TCP connection, or it broke
    │   ├── AuthenticationError     SSH refused every key
    │   ├── HostKeyError            the SSH host key is unknown or has changed
    │   ├── RemoteCommandError      a command on a host failed
    │   ├── CommandTimeoutError     a command on a host did not end in time
    │   ├── DiskFullError           a host has too little space
    │   └── CopyDiffersError        a copy on a host is not what was sent
    ├── WorkerError
    │   ├── WorkerAddressError      an endpoint that cannot be used as a worker
    │   ├── WorkerFingerprintError  the worker runs another engine
    │   ├── WorkerBusyError         the worker serves another head
    │   ├── WorkerNotReadyError     the worker did not become ready
    │   └── WorkerLostError         the worker ended while a model of this process ran on it
    ├── ModelFileError
    │   ├── ModelMissingError       no such model, or none configured
    │   ├── NotGgufError            the file is no GGUF
    │   ├── TruncatedModelError     the file ends too early
    │   ├── GraftError              the indexer of an original cannot be added
    │   ├── MixedShardsError        the shards are not those of one conversion
    │   └── UnsupportedTensorError  the engine cannot compute with a tensor of the file
    ├── TemplateError               the chat template is missing or does not render
    │   ├── TemplateMissingError    the model brings no chat template, or not the one named
    │   ├── TemplateFamilyError     the style is made for another family of templates
    │   ├── TemplateAnchorError     a place that the style replaces has changed
    │   ├── TemplateRenderError     it fails for some conversation
    │   └── TemplateMismatchError   llama-server renders it differently
    ├── PlacementError              the model does not fit the devices
    ├── HeadError
    │   ├── PortTakenError          another process listens there
    │   ├── HeadStartError          llama-server ended while starting
    │   ├── LoadStalledError        loading made no progress
    │   ├── ProofError              the running cluster is not what was asked for
    │   └── SmokeError              checks of a live server did not pass
    ├── DownloadError
    │   ├── TransferError           a server cannot be reached, refuses or breaks off
    │   ├── OfflineError            the network is switched off and something is missing
    │   ├── AccessDeniedError       a gated repository, or a token that does not open it
    │   ├── RepositoryMissingError  no such repository, or a private one
    │   ├── RevisionMissingError    no such branch, tag or commit
    │   ├── RevisionMovedError      what is here belongs to another commit
    │   ├── FileChoiceError         no such quantisation or file, or more than one
    │   ├── UnsafeNameError         a published name would leave the folder
    │   ├── ShardSetError           the shards are not one complete set
    │   ├── RangesIgnoredError      the server sends whole files instead of parts
    │   ├── RemoteChangedError      the published file changed meanwhile
    │   ├── ChecksumError           the bytes are not the published ones
    │   └── DownloadBusyError       another process downloads the same file
    ├── BindingError
    │   ├── ModelClosedError        a model is used after it was closed
    │   ├── ForkedProcessError      a model is used in a forked process
    │   ├── EngineFailedError       the engine gave up inside this process
    │   ├── ModelCallError          a call asks a model for what it cannot do
    │   └── ChatRequestError        a chat request in this process is malformed
    ├── ClusterBusyError            another ggufcluster command is at work
    └── ClusterUnhealthyError       status found something wrong

Errors carry data as attributes; ``str()`` says what failed and where. What to do next and the exit
code belong to the command line (``ggufcluster/cli/explain.py``). This page shows the whole tree; a
branch with many leaves has a module of its own.
"""

from __future__ import annotations

from ggufcluster.errors.binding import BindingError as BindingError
from ggufcluster.errors.binding import ChatRequestError as ChatRequestError
from ggufcluster.errors.binding import EngineFailedError as EngineFailedError
from ggufcluster.errors.binding import ForkedProcessError as ForkedProcessError
from ggufcluster.errors.binding import ModelCallError as ModelCallError
from ggufcluster.errors.binding import ModelClosedError as ModelClosedError
from ggufcluster.errors.download import AccessDeniedError as AccessDeniedError
from ggufcluster.errors.download import ChecksumError as ChecksumError
from ggufcluster.errors.download import DownloadBusyError as DownloadBusyError
from ggufcluster.errors.download import DownloadError as DownloadError
from ggufcluster.errors.download import FileChoiceError as FileChoiceError
from ggufcluster.errors.download import OfflineError as OfflineError
from ggufcluster.errors.download import RangesIgnoredError as RangesIgnoredError
from ggufcluster.errors.download import RemoteChangedError as RemoteChangedError
from ggufcluster.errors.download import RepositoryMissingError as RepositoryMissingError
from ggufcluster.errors.download import RevisionMissingError as RevisionMissingError
from ggufcluster.errors.download import RevisionMovedError as RevisionMovedError
from ggufcluster.errors.download import ShardSetError as ShardSetError
from ggufcluster.errors.download import TransferError as TransferError
from ggufcluster.errors.download import UnsafeNameError as UnsafeNameError
from ggufcluster.errors.engine import BuildError as BuildError
from ggufcluster.errors.engine import EngineError as EngineError
from ggufcluster.errors.engine import EngineMismatchError as EngineMismatchError
from ggufcluster.errors.engine import EngineMissingError as EngineMissingError
from ggufcluster.errors.engine import PatchError as PatchError
from ggufcluster.errors.engine import SourceError as SourceError
from ggufcluster.errors.engine import ToolchainError as ToolchainError
from ggufcluster.errors.model import GraftError as GraftError
from ggufcluster.errors.model import MixedShardsError as MixedShardsError
from ggufcluster.errors.model import ModelFileError as ModelFileError
from ggufcluster.errors.model import ModelMissingError as ModelMissingError
from ggufcluster.errors.model import NotGgufError as NotGgufError
from ggufcluster.errors.model import TruncatedModelError as TruncatedModelError
from ggufcluster.errors.model import UnsupportedTensorError as UnsupportedTensorError
from ggufcluster.errors.root import GgufClusterError as GgufClusterError
from ggufcluster.errors.template import TemplateAnchorError as TemplateAnchorError
from ggufcluster.errors.template import TemplateError as TemplateError
from ggufcluster.errors.template import TemplateFamilyError as TemplateFamilyError
from ggufcluster.errors.template import TemplateMismatchError as TemplateMismatchError
from ggufcluster.errors.template import TemplateMissingError as TemplateMissingError
from ggufcluster.errors.template import TemplateRenderError as TemplateRenderError


class ConfigError(GgufClusterError):
    """A setting is unknown, malformed or contradictory."""

    def __init__(self, reason: str, *, source: str) -> None:
        super().__init__(f"{source}: {reason}")
        self.reason = reason
        self.source = source

    def move(self, source: str) -> None:
        """Name another place to correct it."""
        self.args = (f"{source}: {self.reason}",)
        self.source = source


class LocalFileError(GgufClusterError):
    """A file or folder of this machine cannot be read or written."""

    def __init__(self, reason: str, *, path: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.path = path


class RecordError(GgufClusterError):
    """The record of the running cluster is damaged or of another version."""

    def __init__(self, reason: str, *, path: str) -> None:
        super().__init__(f"{path}: the record of the cluster {reason}")
        self.reason = reason
        self.path = path


class ToolFileError(GgufClusterError):
    """A Python file with tools for the chat cannot be used."""

    def __init__(self, reason: str, *, path: str) -> None:
        super().__init__(f"tools of {path}: {reason}")
        self.reason = reason
        self.path = path


class HostError(GgufClusterError):
    """Something is wrong with one host."""

    def __init__(self, message: str, *, host: str) -> None:
        super().__init__(message)
        self.host = host


class HostUnreachableError(HostError):
    """No connection to the host, or it broke."""

    def __init__(self, host: str, *, reason: str) -> None:
        super().__init__(f"cannot reach {host}: {reason}", host=host)
        self.reason = reason


class AuthenticationError(HostError):
    """SSH refused every key that was offered."""

    def __init__(self, host: str, *, user: str, tried: tuple[str, ...]) -> None:
        keys = ", ".join(tried) if tried else "no key"
        super().__init__(f"{host} refused to log in {user} (tried: {keys})", host=host)
        self.user = user
        self.tried = tried


class HostKeyError(HostError):
    """The SSH host key is unknown or differs from the known one."""

    def __init__(self, host: str, *, fingerprint: str, known_hosts: str, changed: bool) -> None:
        what = "has changed" if changed else "is unknown"
        super().__init__(
            f"the SSH host key of {host} {what} ({fingerprint}; checked against {known_hosts})",
            host=host,
        )
        self.fingerprint = fingerprint
        self.known_hosts = known_hosts
        self.changed = changed


class RemoteCommandError(HostError):
    """A command ended with a non-zero exit code."""

    def __init__(self, host: str, *, command: str, exit_code: int, stderr: str) -> None:
        tail = stderr.strip().splitlines()[-1:] or ["no message"]
        super().__init__(f"{host}: {_brief(command)} exited with {exit_code}: {tail[0]}", host=host)
        self.command = command
        self.exit_code = exit_code
        self.stderr = stderr


class CommandTimeoutError(HostError):
    """A command did not end in time and was stopped."""

    def __init__(self, host: str, *, command: str, seconds: float) -> None:
        super().__init__(f"{host}: {_brief(command)} did not end within {seconds:g} s", host=host)
        self.command = command
        self.seconds = seconds


class DiskFullError(HostError):
    """A host has too little space; sizes are in bytes, ``free`` is None if unknown."""

    def __init__(self, host: str, *, path: str, need: int, free: int | None) -> None:
        have = "" if free is None else f", {_size(free)} free"
        super().__init__(f"{host}: no space for {_size(need)} under {path}{have}", host=host)
        self.path = path
        self.need = need
        self.free = free


class CopyDiffersError(HostError):
    """A file on a host is not the one that was sent there."""

    def __init__(self, host: str, *, path: str, reason: str) -> None:
        super().__init__(f"{host}: {path} {reason}", host=host)
        self.path = path
        self.reason = reason


class WorkerError(GgufClusterError):
    """Something is wrong with one worker; ``worker`` is its name or endpoint."""

    def __init__(self, message: str, *, worker: str) -> None:
        super().__init__(message)
        self.worker = worker


class WorkerAddressError(WorkerError):
    """An endpoint cannot be used as a worker."""

    def __init__(self, worker: str, *, reason: str) -> None:
        super().__init__(f"worker {worker!r}: {reason}", worker=worker)
        self.reason = reason


class WorkerFingerprintError(WorkerError):
    """The worker runs another engine than this head."""

    def __init__(self, worker: str, *, theirs: str, ours: str) -> None:
        super().__init__(
            f"worker {worker} runs engine {theirs}, this head runs engine {ours}", worker=worker
        )
        self.theirs = theirs
        self.ours = ours


class WorkerBusyError(WorkerError):
    """The worker serves another head."""

    def __init__(self, worker: str, *, holder: str) -> None:
        super().__init__(f"worker {worker} is in use by {holder}", worker=worker)
        self.holder = holder


class WorkerNotReadyError(WorkerError):
    """The worker did not become ready; ``log_tail`` holds its last lines."""

    def __init__(self, worker: str, *, reason: str, log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(f"worker {worker} is not ready: {reason}", worker=worker)
        self.reason = reason
        self.log_tail = log_tail


class WorkerLostError(WorkerError):
    """The worker ended, or the connection broke, while a model of this process ran on it."""

    def __init__(self, worker: str, *, reason: str) -> None:
        super().__init__(f"lost worker {worker}: {reason}", worker=worker)
        self.reason = reason


class PlacementError(GgufClusterError):
    """The model does not fit the devices; sizes are in bytes."""

    def __init__(self, reason: str, *, need: int, have: int) -> None:
        super().__init__(
            f"{reason} (needs {need / 2**30:.1f} GiB, the devices offer {have / 2**30:.1f} GiB)"
        )
        self.need = need
        self.have = have


class HeadError(GgufClusterError):
    """Something is wrong with the head's llama-server."""


class PortTakenError(HeadError):
    """Another process listens on the wanted address."""

    def __init__(self, address: str, *, holder: str) -> None:
        super().__init__(f"{address} is taken by {holder}")
        self.address = address
        self.holder = holder


class HeadStartError(HeadError):
    """llama-server ended while starting; ``log_tail`` holds its last lines."""

    def __init__(self, reason: str, *, log: str, log_tail: tuple[str, ...]) -> None:
        super().__init__(f"llama-server did not start: {reason} (log: {log})")
        self.reason = reason
        self.log = log
        self.log_tail = log_tail


class LoadStalledError(HeadError):
    """Loading made no progress for too long."""

    def __init__(self, seconds: float, *, phase: str, log: str) -> None:
        super().__init__(f"no progress for {seconds:.0f} s while {phase} (log: {log})")
        self.seconds = seconds
        self.phase = phase
        self.log = log


class ProofError(HeadError):
    """The running cluster is not what was asked for; ``failures`` says in what."""

    def __init__(self, failures: tuple[str, ...]) -> None:
        super().__init__("the cluster runs but is not what was asked for: " + "; ".join(failures))
        self.failures = failures


class SmokeError(HeadError):
    """Checks of a live server did not pass; ``failures`` says which and why."""

    def __init__(self, failures: tuple[str, ...], *, total: int) -> None:
        super().__init__(f"{len(failures)} of {total} checks failed: " + "; ".join(failures))
        self.failures = failures
        self.total = total


class ClusterBusyError(GgufClusterError):
    """Another ggufcluster command is at work."""

    def __init__(self, what: str, *, holder: str) -> None:
        super().__init__(f"{what} is in use by {holder}")
        self.what = what
        self.holder = holder


class ClusterUnhealthyError(GgufClusterError):
    """The status check found something wrong; ``problems`` says what."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def _brief(command: str) -> str:
    return "a shell script of ours" if "\n" in command else command


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**10:,.0f} KiB"
