"""The typed launch spec and the command lines that follow from it.

Each rule here has a silent failure behind it; docs/design.md names them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.command import Command
from ggufcluster.core.engine import PROGRAM_VARIABLES
from ggufcluster.core.kv_cache import INDEX_TYPE
from ggufcluster.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import PurePosixPath

# What the plan decides; given again after `--` it would contradict the plan in silence.
_OURS = frozenset(
    "--rpc --device -dev --tensor-split -ts --split-mode -sm --model -m --host --port --parallel"
    " -np --kv-unified -kvu --no-kv-unified -no-kvu --flash-attn -fa --fit -fit --ctx-size -c"
    " --n-gpu-layers -ngl --gpu-layers --cache-type-k -ctk --cache-type-v -ctv --api-key"
    " --api-key-file --chat-template --chat-template-file --no-jinja"
    " --ubatch-size -ub --batch-size -b --msa"
    " --log-verbosity -lv --verbosity --log-disable --log-file".split()
)


@dataclass(frozen=True, slots=True)
class DeviceLayers:
    """One device in pipeline order with the number of layers it gets."""

    device: str
    layers: int


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """Everything that shapes one llama-server.

    Attributes:
        model: First shard, absolute path on the head.
        alias: Model name shown by the API.
        endpoints: ``address:port`` of each worker, in the order of their RPC devices.
        split: Devices in pipeline order with their layers.
        context: Tokens per slot.
        parallel: Number of slots.
        kv_type: Type of the KV cache, keys and values alike.
        ubatch: Tokens per ubatch.
        host: Address on which the API listens.
        port: Port on which the API listens.
        msa: Path of sparse attention, or None for a model without.
        index_type: Type of its index keys, or None for a model without.
        sampling: Default sampling options of the model family.
        template: Chat template file, or None for the model's own.
        api_key_file: File with API keys, or None for no key.
        extra: Further llama-server options, passed on unchanged.
    """

    model: PurePosixPath
    alias: str
    endpoints: tuple[str, ...]
    split: tuple[DeviceLayers, ...]
    context: int
    parallel: int
    kv_type: str
    ubatch: int
    host: str
    port: int
    msa: str | None = None
    index_type: str | None = None
    sampling: tuple[tuple[str, str], ...] = ()
    template: PurePosixPath | None = None
    api_key_file: PurePosixPath | None = None
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_extra(self.extra)


def check_extra(words: Sequence[str]) -> None:
    """Refuse llama-server options that would contradict the plan.

    Raises:
        ConfigError: One of them does, or the first word is no option at all.
    """
    if words and not words[0].startswith("-"):
        raise ConfigError(
            f"{words[0]!r} is no option; a worker is named with --worker", source="up"
        )
    for word in words:
        if word.split("=")[0] in _OURS:
            raise ConfigError(
                f"{word} is decided by ggufcluster; use its own option", source="after --"
            )


def root_url(host: str, port: int) -> str:
    """Return the URL by which this machine reaches a server that listens on `host`."""
    near = {"0.0.0.0": "127.0.0.1", "::": "127.0.0.1"}.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"


def server_command(spec: LaunchSpec, *, bin_folder: PurePosixPath) -> Command:
    """Build the llama-server call of a launch spec."""
    words = [str(bin_folder / "llama-server"), "--model", str(spec.model), "--alias", spec.alias]
    words += ["--rpc", ",".join(spec.endpoints)] if spec.endpoints else []
    words += _split_words(spec) + _memory_words(spec)
    words += ["--host", spec.host, "--port", str(spec.port), "--no-ui", "--metrics", "--jinja"]
    # Verbosity 4 says which layers went where and whether attention is sparse: the proof reads it.
    words += ["--log-verbosity", "4", "--log-colors", "off"]
    words += ["--msa", spec.msa] if spec.msa else []
    words += ["--chat-template-file", str(spec.template)] if spec.template else []
    words += ["--api-key-file", str(spec.api_key_file)] if spec.api_key_file else []
    words += [word for pair in spec.sampling for word in pair]
    # There is no option for it.
    odd = spec.index_type if spec.index_type != INDEX_TYPE else None
    index = {"GGUFCLUSTER_MSA_INDEX_TYPE": odd} if odd else {}
    return Command((*words, *spec.extra), env={**PROGRAM_VARIABLES, **index})


def worker_command(*, bin_folder: PurePosixPath, address: str, port: int) -> Command:
    """Build the RPC server call of one worker; -c keeps big tensors in its file cache."""
    words = (str(bin_folder / "ggml-rpc-server"), "--host", address, "--port", str(port))
    return Command((*words, "--cache"), env=PROGRAM_VARIABLES)


def _split_words(spec: LaunchSpec) -> list[str]:
    words = ["--split-mode", "layer", "--gpu-layers", "999", "--fit", "off"]
    if spec.split:
        # llama.cpp divides layers plus the output head by these weights, so whole layer counts,
        # with the head counted to the last device, cut exactly where the plan does.
        counts = [part.layers for part in spec.split]
        counts[-1] += 1
        words += ["--device", ",".join(part.device for part in spec.split)]
        words += ["--tensor-split", ",".join(str(count) for count in counts)]
    return words


def _memory_words(spec: LaunchSpec) -> list[str]:
    return [
        # A unified cache or no flash attention turns sparse attention off without a word.
        *("--parallel", str(spec.parallel), "--no-kv-unified", "--flash-attn", "on"),
        *("--ctx-size", str(spec.context * spec.parallel)),
        *("--cache-type-k", spec.kv_type, "--cache-type-v", spec.kv_type),
        *("--ubatch-size", str(spec.ubatch), "--batch-size", str(spec.ubatch)),
        # mmap is many times slower on unified memory, and its pages count twice there.
        *("--load-mode", "none"),
        # Saving prompts over RPC has aborted clusters of three.
        *("--cache-ram", "0"),
    ]
