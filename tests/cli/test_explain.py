"""The table from errors to exit codes and next steps."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from ggufcluster import errors
from ggufcluster.cli.explain import _TABLE, INTERRUPTED, details, explain
from ggufcluster.workflows.status import STILL_LOADING

CLASSES = {
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.GgufClusterError)
}
LEAVES = {kind for kind in CLASSES if not kind.__subclasses__()}


def test_every_class_is_in_the_table_once() -> None:
    """Each error, leaf or not, has a row of its own."""
    rows = [kind for kind, _, _ in _TABLE]
    assert len(rows) == len(set(rows))
    # The roots of workers' and hosts' errors have rows too, so that nothing falls through.
    assert LEAVES <= set(rows) == CLASSES


def test_exit_codes_are_distinct_and_free() -> None:
    """No two rows share a code, and none is one that shells or Typer use for something else."""
    codes = [code for _, code, _ in _TABLE]
    assert len(codes) == len(set(codes))
    assert not set(codes) & {0, 2, INTERRUPTED}
    assert max(codes) < 126


@pytest.mark.parametrize("row", range(len(_TABLE)), ids=lambda row: _TABLE[row][0].__name__)
def test_a_root_stands_after_its_leaves(row: int) -> None:
    """The first row that fits a class is its own."""
    kind = _TABLE[row][0]
    assert not any(issubclass(kind, earlier) for earlier, _, _ in _TABLE[:row])


def test_every_exit_code_is_described() -> None:
    """The class behind each code says in its first line, in one sentence, what it stands for."""
    assert all((kind.__doc__ or "").split("\n")[0].endswith(".") for kind, _, _ in _TABLE)


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (errors.ConfigError("x", source="workers.hosts"), 3, "ggufcluster config"),
        (errors.ConfigError("x", source="--ctx"), 3, "--help"),
        (errors.ConfigError("x", source="up"), 3, "--help"),
        (errors.ModelMissingError("no such file", path="/m"), 40, "a file that is there"),
        (errors.ModelMissingError("no model was named"), 40, "--model FILE"),
        (errors.ConfigError("x", source="/h/config.toml, ctx"), 3, "example.toml"),
        (errors.ConfigError("x", source="GGUFCLUSTER_CTX"), 3, "correct it there"),
        (errors.ConfigError("x", source="HF_ENDPOINT"), 3, "leave it unset"),
        (errors.AuthenticationError("me@spark", user="me", tried=()), 21, "ssh-copy-id me@spark"),
        (
            errors.HostKeyError("me@spark", fingerprint="f", known_hosts="k", changed=True),
            22,
            "ssh-keygen -R spark;",
        ),
        (
            errors.HostKeyError("me@spark", fingerprint="f", known_hosts="k", changed=False),
            22,
            "--accept-new-host-keys",
        ),
        (errors.WorkerFingerprintError("w", theirs="a", ours="b"), 31, "something else listens"),
        (errors.ProofError(("no tool call was parsed",)), 53, "--no-tool-check"),
        (errors.ProofError(("RPC0 holds 0 layers",)), 53, "logs head"),
        (errors.SmokeError(("two calls: no call for rome",), total=6), 55, "--template-style"),
        (errors.SmokeError(("a long prompt: no answer",), total=6), 55, "chat` shows"),
        (errors.HeadError("x"), 54, "status"),
        (errors.AccessDeniedError("x", where="a/b", gated=True), 82, "the page of a/b"),
        (errors.AccessDeniedError("x", where="a/b", gated=False), 82, "HF_TOKEN"),
        (errors.ClusterBusyError("x", holder="process 7 (ggufcluster)"), 60, "wait until"),
        (errors.ClusterBusyError("x", holder="a cluster with context 1"), 60, "down` first"),
        (errors.FileChoiceError("x", where="a/b", choices=("Q8_0",)), 86, "--quant"),
        (errors.FileChoiceError("x", where="a/b", choices=()), 86, "another repository"),
        (errors.RevisionMovedError("x", where="f", ours="c1"), 85, "--revision c1"),
        (errors.RevisionMovedError("x", where="f", ours=None), 85, "--restart replaces"),
        (errors.GgufClusterError("x"), 1, ""),
    ],
)
def test_code_and_next_step_follow_the_error(
    error: errors.GgufClusterError, code: int, hint: str
) -> None:
    """What to do next names the host, the command or the option at hand."""
    found, text = explain(error)
    assert found == code
    assert hint in text


def test_details_are_the_lines_that_came_with_an_error() -> None:
    """Compiler output and the ends of logs are shown, other errors have none."""
    tail = ("one", "two")
    assert details(errors.BuildError("x", host="h", log="l", excerpt=tail)) == tail
    assert details(errors.HeadStartError("x", log="l", log_tail=tail)) == tail
    assert details(errors.WorkerNotReadyError("w", reason="x", log_tail=tail)) == tail
    assert details(errors.HeadError("x")) == ()


def test_a_cluster_that_is_loading_is_waited_for() -> None:
    """Starting it anew is the wrong advice while an `up` is at work."""
    assert "wait" in explain(errors.ClusterUnhealthyError((STILL_LOADING,)))[1]
    assert "anew" in explain(errors.ClusterUnhealthyError(("the head has ended",)))[1]


README_MESSAGES = {
    "no engine ... is built": errors.EngineMissingError,
    "the SSH host key of": errors.HostKeyError,
    "refused to log in": errors.AuthenticationError,
    "runs engine": errors.WorkerFingerprintError,
    "is in use by alice": errors.WorkerBusyError,
    "is frozen": errors.WorkerNotReadyError,
    "does not fit": errors.PlacementError,
    "llama-server did not start": errors.HeadStartError,
    "no progress for": errors.LoadStalledError,
    "comes from another conversion": errors.MixedShardsError,
    "which the engine cannot use": errors.UnsupportedTensorError,
    "sparse attention is off": errors.ProofError,
    "no tool call was parsed": errors.ProofError,
    "cannot compile for": errors.ToolchainError,
    "begins nowhere": errors.TemplateAnchorError,
    "fails for the conversation": errors.TemplateRenderError,
    "does not apply": errors.PatchError,
    "the record of the cluster is damaged": errors.RecordError,
    "the cluster is in use by process": errors.ClusterBusyError,
    "wants its terms accepted": errors.AccessDeniedError,
    "is not on huggingface.co": errors.RepositoryMissingError,
    "belongs to commit": errors.RevisionMovedError,
    "sends the whole file": errors.RangesIgnoredError,
    "SHA-256 is": errors.ChecksumError,
}


def test_the_readme_tells_the_same_codes() -> None:
    """Each row of its trouble table that has an exit code has that of its error's class."""
    text = (Path(errors.__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \((\d+)\) \|", text, re.MULTILINE)
    codes = {kind: code for kind, code, _ in _TABLE}
    told = {words: int(code) for row, code in rows for words in README_MESSAGES if words in row}
    assert told == {words: codes[kind] for words, kind in README_MESSAGES.items()}
    assert len(rows) == len(README_MESSAGES)
