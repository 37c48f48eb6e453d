"""The exception tree."""

from __future__ import annotations

import inspect
import re

import pytest

from ggufcluster import errors

GIB = 1 << 30


def drawn_tree() -> dict[str, str]:
    """Return the parent of each class as the module's docstring draws it."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]
        found = re.match(r"\s*(?P<bars>[│├└─ ]*)(?P<name>[A-Z]\w*Error)\b", line)
        if found:
            depth = len(found["bars"].rstrip()) and (len(found["bars"]) + 3) // 4
            path[depth:] = [found["name"]]
            parents[found["name"]] = path[depth - 1] if depth else ""
    return parents


def real_tree() -> dict[str, str]:
    """Return the parent of each class of the module."""
    classes = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, Exception)
    ]
    return {
        kind.__name__: kind.__base__.__name__ if kind is not errors.GgufClusterError else ""
        for kind in classes
        if kind.__base__ is not None
    }


def test_the_drawing_is_the_tree() -> None:
    """The tree in the docstring names every class below its real base, and no other class."""
    assert drawn_tree() == real_tree()
    assert len(real_tree()) > 30


EXAMPLES = [
    errors.ConfigError("unknown setting", source="a.toml"),
    errors.LocalFileError("Permission denied", path="/s"),
    errors.RecordError("is damaged", path="/s/cluster.json"),
    errors.ToolFileError("has no functions", path="/t.py"),
    errors.SourceError("hash differs", location="a.tar.gz"),
    errors.PatchError("a.patch", file="b.cpp", reason="line 3"),
    errors.ToolchainError("nvcc", host="spark", reason="is missing"),
    errors.BuildError("compiling", host="spark", log="/l", excerpt=("a", "b")),
    errors.EngineMissingError("e-cpu", folder="/e"),
    errors.EngineMismatchError("other commit", library="/l.so"),
    errors.ModelClosedError("m"),
    errors.ForkedProcessError("m", owner=7),
    errors.EngineFailedError("m", reason="assert"),
    errors.ChatRequestError("no such tool"),
    errors.ModelCallError("the grammar cannot be read"),
    errors.WorkerLostError("a:1", reason="it ended"),
    errors.HostUnreachableError("spark", reason="timed out"),
    errors.AuthenticationError("spark", user="me", tried=("k1", "k2")),
    errors.HostKeyError("spark", fingerprint="SHA256:x", known_hosts="/k", changed=True),
    errors.RemoteCommandError("spark", command="ls", exit_code=2, stderr="x\nno such file\n"),
    errors.CommandTimeoutError("spark", command="ls", seconds=1.5),
    errors.DiskFullError("spark", path="/d", need=2 * GIB, free=GIB),
    errors.CopyDiffersError("spark", path="/d/m.gguf", reason="is another file than here"),
    errors.WorkerAddressError("a:b", reason="is odd"),
    errors.WorkerFingerprintError("a:1", theirs="f1", ours="f2"),
    errors.WorkerBusyError("a", holder="you@b"),
    errors.WorkerNotReadyError("a", reason="is dead", log_tail=("x",)),
    errors.ModelMissingError("no such file", path="/m"),
    errors.NotGgufError("bad magic", path="/m"),
    errors.TruncatedModelError(have=1000, need=2000, path="/m"),
    errors.GraftError("has its indexer already", path="/m"),
    errors.MixedShardsError("is shard 2 of 3", path="/m"),
    errors.UnsupportedTensorError("is of type F64", path="/m"),
    errors.TemplateMissingError("is empty", path="/t"),
    errors.TemplateFamilyError("Llama", path="/t"),
    errors.TemplateAnchorError(
        "tool instructions", reason="begins nowhere", excerpt=("1: x",), path="/t"
    ),
    errors.TemplateRenderError("one question", reason="line 1", path="/t"),
    errors.TemplateMismatchError("one question", excerpt=("x",), path="/t"),
    errors.PlacementError("too big", need=3 * GIB, have=GIB),
    errors.SmokeError(("a loop: no answer",), total=6),
    errors.PortTakenError("127.0.0.1:8080", holder="nginx"),
    errors.HeadStartError("oom", log="/l", log_tail=("x",)),
    errors.LoadStalledError(300.0, phase="loading M", log="/l"),
    errors.ProofError(("no layers", "no call")),
    errors.TransferError("gave no answer", where="h:1", wait=None, status=None),
    errors.OfflineError("2 files are missing", where="a/b"),
    errors.AccessDeniedError("wants its licence accepted", where="a/b", gated=True),
    errors.RepositoryMissingError("is not there", where="a/b"),
    errors.RevisionMissingError("has no v2", where="a/b"),
    errors.RevisionMovedError("belongs to commit c1", where="/m/x", ours="c1"),
    errors.FileChoiceError("no Q9", where="a/b", choices=("Q4", "Q8")),
    errors.UnsafeNameError("leaves the folder", where="../x"),
    errors.ShardSetError("2 of 3 are missing", where="a/b"),
    errors.RangesIgnoredError("sends all", where="h"),
    errors.RemoteChangedError("has another size", where="x"),
    errors.ChecksumError(where="x", expected="e1", got="g2", kept="/m/x.wrong"),
    errors.DownloadBusyError("is in use by process 3", where="/m/x"),
    errors.ClusterBusyError("the head", holder="process 3"),
    errors.ClusterUnhealthyError(("a is dead", "b is frozen")),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_the_message_tells_all_that_the_error_carries(error: errors.GgufClusterError) -> None:
    """Every text the error was made of is in its message, but for long excerpts and logs' tails."""
    told = str(error)
    assert "\n" not in told
    for name, value in vars(error).items():
        if name in {
            "log_tail",
            "excerpt",
            "stderr",
            "changed",
            "need",
            "have",
            "free",
            "seconds",
            "status",
            "wait",
            "gated",
        }:
            continue
        for text in value if isinstance(value, tuple) else (value,):
            assert str(text) in told, name


def test_every_leaf_has_an_example() -> None:
    """The list above keeps up with the tree."""
    tree = real_tree()
    leaves = set(tree) - set(tree.values())
    assert {type(error).__name__ for error in EXAMPLES} == leaves


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.RemoteCommandError("h", command="x", exit_code=1, stderr=""), "no message"),
        (
            errors.RemoteCommandError("h", command="a\nb", exit_code=1, stderr=""),
            "h: a shell script",
        ),
        (
            errors.CommandTimeoutError("h", command="a\nb", seconds=3),
            "h: a shell script of ours did",
        ),
        (errors.DiskFullError("h", path="/p", need=2048, free=0), "2 KiB under /p, 0 KiB free"),
        (errors.RemoteCommandError("h", command="x", exit_code=1, stderr="a\nb\n"), ": b"),
        (errors.AuthenticationError("h", user="u", tried=()), "tried: no key"),
        (errors.HostKeyError("h", fingerprint="f", known_hosts="k", changed=False), "is unknown"),
        (errors.DiskFullError("h", path="/", need=GIB, free=None), "1.00 GiB under /"),
        (errors.TruncatedModelError(have=1000, need=2000), "has 1,000 bytes and needs 2,000"),
        (
            errors.PlacementError("x", need=3 * GIB, have=GIB),
            "needs 3.0 GiB, the devices offer 1.0",
        ),
        (errors.ModelFileError("has no keys"), "has no keys"),
    ],
)
def test_special_cases_read_well(error: errors.GgufClusterError, words: str) -> None:
    """What is unknown is left away or said in words, and sizes have a unit."""
    assert words in str(error)
    assert "None" not in str(error)
