"""From an exception to exit code and next step: the one table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster import errors
from ggufcluster.workflows.status import STILL_LOADING

if TYPE_CHECKING:
    from collections.abc import Callable

INTERRUPTED = 130
# That name themselves in errors about their arguments.
_COMMANDS = frozenset({"chat", "download", "logs", "up"})


def _text(hint: str) -> Callable[[errors.GgufClusterError], str]:
    return lambda _error: hint


def _config(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.ConfigError)
    if error.source in _COMMANDS or error.source.startswith(("after --", "--", "FILE")):
        return "see that command's --help"
    if error.source.startswith("HF_"):
        return "correct that variable, or leave it unset"
    # `ggufcluster config` reads them, too, and would only say the same.
    if error.source.startswith("GGUFCLUSTER_") or ".toml" in error.source:
        return "correct it there; ggufcluster/example.toml shows every setting"
    return "see `ggufcluster config` for what is set and where"


def _host_key(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.HostKeyError)
    if error.changed:
        return (
            "if the machine was set up anew, remove its old key:"
            f" ssh-keygen -R {error.host.rpartition('@')[2]}; if not, somebody may be in between"
        )
    return "compare it with the machine's own, then repeat with --accept-new-host-keys"


def _ssh_login(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.AuthenticationError)
    return f"allow your key there: ssh-copy-id {error.user}@{error.host.rpartition('@')[2]}"


def _fingerprint(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.WorkerFingerprintError)
    return "something else listens there; end it, or let `ggufcluster up` choose another port"


def _proof(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.ProofError)
    if any("tool call" in failure for failure in error.failures):
        return "choose a template with --template, or skip this check with --no-tool-check"
    return "see `ggufcluster logs head`; the cluster was taken down"


def _model(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.ModelMissingError)
    how = "name a file that is there" if error.path else "name one with --model FILE"
    return f"{how}, or download one first"


def _smoke(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.SmokeError)
    if any("call" in failure or "loop" in failure for failure in error.failures):
        return "another --template-style may read the calls; see `ggufcluster logs head`"
    return "see `ggufcluster logs head`; `ggufcluster chat` shows what it answers"


def _busy(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.ClusterBusyError)
    # `down` cannot help against a command at work: it would be refused with the same words.
    if error.holder.startswith("process "):
        return "wait until that command has ended, or end it with Ctrl-C"
    return "run `ggufcluster down` first, or ask for the same as it has"


def _unhealthy(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.ClusterUnhealthyError)
    if error.problems == (STILL_LOADING,):
        return "wait for the `ggufcluster up` that is at work; `ggufcluster logs -f` shows it"
    return "run `ggufcluster up`: it starts the cluster anew"


def _access(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.AccessDeniedError)
    if error.gated:
        return f"accept the terms at the page of {error.where}, then set HF_TOKEN to your token"
    return "set HF_TOKEN to a token that may read it"


def _choice(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.FileChoiceError)
    if not error.choices:
        return "choose another repository"
    return "choose with --quant NAME or --include 'GLOB'"


def _moved(error: errors.GgufClusterError) -> str:
    assert isinstance(error, errors.RevisionMovedError)
    if error.ours is None:
        return "move it away or choose another --dir; --restart replaces it"
    return f"--revision {error.ours} goes on with the old one, --restart begins the new one"


# Order matters: the first class that fits is taken, so leaves stand before their roots.
_TABLE: tuple[
    tuple[type[errors.GgufClusterError], int, Callable[[errors.GgufClusterError], str]], ...
] = (
    (errors.ConfigError, 3, _config),
    (errors.LocalFileError, 4, _text("check that it is there, your rights, and the disk")),
    (
        errors.RecordError,
        5,
        _text("`ggufcluster down --forget` ends what runs here and forgets it"),
    ),
    (errors.ToolFileError, 6, _text("mend the file; the README says what makes a tool")),
    (errors.SourceError, 10, _text("check the network, or give a tree with --source DIR")),
    (errors.PatchError, 11, _text("vendor/llama.cpp/README.md says how to move to another pin")),
    (errors.ToolchainError, 12, _text("install it, or choose another --backend or --arch")),
    (errors.BuildError, 13, _text("repeat the command to resume where it stopped")),
    (errors.EngineMissingError, 15, _text("build it with `ggufcluster build`")),
    (
        errors.EngineMismatchError,
        16,
        _text("install the llama-cpp-python of vendor/llama.cpp/UPSTREAM, build without --source"),
    ),
    (errors.EngineError, 14, _text("build it anew with `ggufcluster build`")),
    (errors.HostUnreachableError, 20, _text("check name, address, port and cable")),
    (errors.AuthenticationError, 21, _ssh_login),
    (errors.HostKeyError, 22, _host_key),
    (errors.CommandTimeoutError, 23, _text("check the load of that machine, then repeat")),
    (errors.DiskFullError, 24, _text("make room there, then repeat the command")),
    (errors.RemoteCommandError, 25, _text("log in there and try the command by hand")),
    (errors.CopyDiffersError, 27, _text("look at that file there, remove it, then repeat")),
    (errors.HostError, 26, _text("log in there and look")),
    (errors.WorkerAddressError, 30, _text("write workers as [user@]host[:ssh-port] or local:N")),
    (errors.WorkerFingerprintError, 31, _fingerprint),
    (errors.WorkerBusyError, 32, _text("take that cluster down first, from its own head")),
    (errors.WorkerNotReadyError, 33, _text("its last lines are above; see also the host's memory")),
    (errors.WorkerLostError, 29, _text("see that host's memory and log, then load the model anew")),
    (errors.WorkerError, 34, _text("see `ggufcluster status`")),
    (errors.ModelMissingError, 40, _model),
    (errors.NotGgufError, 41, _text("give a .gguf file, or the first shard of a set")),
    (errors.TruncatedModelError, 42, _text("download that file again")),
    (errors.MixedShardsError, 46, _text("download the whole set again, into a folder of its own")),
    (errors.UnsupportedTensorError, 47, _text("choose another quantisation, or convert it again")),
    (errors.GraftError, 48, _text("see `ggufcluster graft-indexer --help`; nothing was changed")),
    (errors.ModelFileError, 43, _text("download it again, or give another model")),
    (errors.TemplateMissingError, 35, _text("give a template file with --template FILE")),
    (errors.TemplateFamilyError, 36, _text("take --style native: it keeps the model's own format")),
    (errors.TemplateAnchorError, 37, _text("take --style native, and report the lines above")),
    (errors.TemplateRenderError, 38, _text("mend the template there, or take another one")),
    (
        errors.TemplateMismatchError,
        39,
        _text("report it with the lines above; nothing was written"),
    ),
    (errors.TemplateError, 44, _text("mend the template, or leave --template away")),
    (errors.PlacementError, 45, _text("add workers, or lower --ctx, --parallel or --kv-type")),
    (errors.PortTakenError, 50, _text("end that process, or choose another --port")),
    (errors.HeadStartError, 51, _text("its last lines are above")),
    (errors.LoadStalledError, 52, _text("see the log, and the hosts' memory and network")),
    (errors.ProofError, 53, _proof),
    (errors.SmokeError, 55, _smoke),
    (errors.HeadError, 54, _text("see `ggufcluster status` and `ggufcluster logs head`")),
    (errors.TransferError, 80, _text("check network and proxy; repeated, it goes on where it was")),
    (errors.OfflineError, 81, _text("unset HF_HUB_OFFLINE, or copy the files there")),
    (errors.AccessDeniedError, 82, _access),
    (errors.RepositoryMissingError, 83, _text("check the name; a private one needs HF_TOKEN")),
    (errors.RevisionMissingError, 84, _text("leave --revision away, or name one that is there")),
    (errors.RevisionMovedError, 85, _moved),
    (errors.FileChoiceError, 86, _choice),
    (errors.UnsafeNameError, 87, _text("do not trust that repository")),
    (errors.ShardSetError, 88, _text("choose another repository or revision, or tell its owner")),
    (errors.RangesIgnoredError, 89, _text("set another HF_ENDPOINT, or another proxy")),
    (errors.RemoteChangedError, 90, _text("repeat the command; what is still right is kept")),
    (errors.ChecksumError, 91, _text("repeat the command; if it stays so, change HF_ENDPOINT")),
    (errors.DownloadBusyError, 92, _text("wait for it, or end it")),
    (errors.DownloadError, 93, _text("repeat the command; it goes on where it was")),
    (errors.ModelClosedError, 62, _text("load it anew")),
    (errors.ForkedProcessError, 63, _text("load it after the fork, or start processes by spawn")),
    (errors.EngineFailedError, 64, _text("see the logger ggufcluster.engine; load it anew")),
    (errors.ChatRequestError, 66, _text("see the reason; the model itself is well")),
    (errors.ModelCallError, 67, _text("see the reason; the model itself is well")),
    (errors.BindingError, 65, _text("load it anew")),
    (errors.ClusterBusyError, 60, _busy),
    (errors.ClusterUnhealthyError, 61, _unhealthy),
    (errors.GgufClusterError, 1, _text("")),
)


def explain(error: errors.GgufClusterError) -> tuple[int, str]:
    """Return the exit code of an error and what to do next."""
    for kind, code, hint in _TABLE:
        if isinstance(error, kind):
            return code, hint(error)
    raise AssertionError("the table ends with the root class")


def details(error: errors.GgufClusterError) -> tuple[str, ...]:
    """Return the lines that came with an error: compiler output or the end of a log."""
    with_excerpt = errors.BuildError | errors.TemplateAnchorError | errors.TemplateMismatchError
    if isinstance(error, with_excerpt):
        return error.excerpt
    if isinstance(error, errors.HeadStartError | errors.WorkerNotReadyError):
        return error.log_tail
    return ()


def notes(error: BaseException) -> tuple[str, ...]:
    """Return what was noted on an error on its way up."""
    return tuple(getattr(error, "__notes__", ()))
