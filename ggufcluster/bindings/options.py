"""The options of the command line as keyword arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from os import PathLike


class UpOptions(TypedDict, total=False):
    """Options of `Cluster.up`; what is left out comes from the settings, as for the CLI.

    Attributes:
        model: GGUF file, or the first shard of a set.
        ctx: Tokens per slot, or ``max``.
        parallel: Number of slots.
        kv_type: Type of the KV cache: ``f16``, ``q8_0`` or ``q4_0``.
        ubatch: Tokens per ubatch.
        msa: Path of sparse attention: ``auto``, ``native``, ``generic`` or ``dense``.
        template: Chat template file.
        template_style: ``auto``, ``native``, ``hybrid`` or ``own``.
        host: Address on which the API listens.
        port: Port on which the API listens.
        api_key_file: File with one API key a line.
        backend: What the engine is built for: ``auto``, ``cpu`` or ``cuda``.
        arch: CUDA architectures such as ``121``.
        jobs: Compilers at a time.
        source: A llama.cpp tree to use instead of the pinned one.
        accept_new_host_keys: Whether unknown SSH host keys are added.
        allow_public: Whether a worker may listen on a public address.
        drop_caches: Whether the page cache of every node is freed first.
        tool_check: Whether one tool call must be proven.
    """

    model: str | PathLike[str]
    ctx: int | str
    parallel: int
    kv_type: str
    ubatch: int
    msa: str
    template: str | PathLike[str]
    template_style: str
    host: str
    port: int
    api_key_file: str | PathLike[str]
    backend: str
    arch: tuple[str, ...]
    jobs: int
    source: str | PathLike[str]
    accept_new_host_keys: bool
    allow_public: bool
    drop_caches: bool
    tool_check: bool


_KEYS = {
    **{name: f"head.{name}" for name in ("host", "port", "api_key_file", "drop_caches")},
    **{name: f"engine.{name}" for name in ("backend", "arch", "jobs", "source")},
    **{name: f"workers.{name}" for name in ("accept_new_host_keys", "allow_public")},
    "tool_check": "head.tool_check",
}
_FILES = frozenset({"model", "template", "api_key_file", "source"})


def flags_of(workers: Iterable[str] | None, options: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that keyword arguments stand for, by key.

    Raises:
        TypeError: There is no such option.
    """
    if unknown := sorted(options.keys() - UpOptions.__optional_keys__):
        raise TypeError(f"there is no option {unknown[0]!r}")
    flags = {
        _KEYS.get(name, name): str(value) if name in _FILES and value is not None else value
        for name, value in options.items()
    }
    if workers is not None:
        flags["workers.hosts"] = (workers,) if isinstance(workers, str) else tuple(workers)
    return flags
