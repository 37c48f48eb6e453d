"""Read what llama-server says of itself while it starts (verbosity 4, at our pin).

The lines that are relied upon are listed in vendor/llama.cpp/README.md.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STAMP = re.compile(r"^[\d.]+ [A-Z] ")
_LAYER = re.compile(r"load_tensors: layer\s+(\d+) assigned to device (\w+)")
_BUFFER = re.compile(r"load_tensors:\s+(\S+) model buffer size =\s+([\d.]+) MiB")
_KV = re.compile(r"llama_kv_cache: \s*(\S+) KV buffer size =\s+([\d.]+) MiB")
_COMPUTE = re.compile(r"sched_reserve:\s+(\S+) compute buffer size =\s+([\d.]+) MiB")
_OUTPUT = re.compile(r"llama_context:\s+(\S+)\s+output buffer size =\s+([\d.]+) MiB")
_PATH = re.compile(r"ggufcluster: sparse attention: (\w+) path")
_ENDPOINT = re.compile(r"RPC\d+\[(.+)\]")
_TROUBLE = re.compile(
    r"\berror\b|\bfail|\bfatal\b|cannot|refused|mismatch|unable|invalid|not found|out of memory"
    r"|worker \S+|exception|\babort|illegal|corrupt",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class BufferUse:
    """What llama-server holds in the buffers of one name, in MiB."""

    weights: float
    kv_cache: float
    compute: float
    outputs: float


@dataclass(frozen=True, slots=True)
class ServerReport:
    """How llama-server has laid out a model.

    Attributes:
        layers: Number of repeating layers by llama.cpp's device name.
        weights: MiB of weights by endpoint (for a worker) or device name.
        kv_cache: MiB of KV cache, likewise.
        compute: MiB of compute buffers, likewise.
        flash_attention: Whether it is on.
        kv_unified: Whether all slots share one KV cache.
        indexer: Whether a cache for sparse attention's indexer was made.
        msa_path: Which path sparse attention takes, ``native`` or ``generic``; empty if none.
        dense_reason: Why sparse attention runs dense, or an empty string.
        buffers: Everything by the buffer's own name: ``CPU``, ``CUDA0``, and for device 0 of a
            worker ``RPC0[address:port]``.
    """

    layers: dict[str, int]
    weights: dict[str, float]
    kv_cache: dict[str, float]
    compute: dict[str, float]
    flash_attention: bool
    kv_unified: bool
    indexer: bool
    msa_path: str
    dense_reason: str
    buffers: dict[str, BufferUse]

    @property
    def sparse_attention(self) -> bool:
        """Whether attention is really sparse."""
        return (
            self.indexer and self.flash_attention and not self.kv_unified and not self.dense_reason
        )


def parse_server_log(lines: Sequence[str]) -> ServerReport:
    """Read the whole log of a start."""
    text = "\n".join(lines)
    found = dict(_LAYER.findall(text))
    dense = (line for line in lines if "running DENSE attention" in line)
    return ServerReport(
        # The last "layer" is the output head, which the plan counts to its device apart.
        layers=dict(Counter(device for layer, device in found.items() if layer != _last(found))),
        weights=_by_endpoint(_sizes(_BUFFER, text)),
        kv_cache=_by_endpoint(_sizes(_KV, text)),
        compute=_by_endpoint(_sizes(_COMPUTE, text)),
        flash_attention=bool(re.search(r"flash_attn\s+= enabled", text)),
        kv_unified=bool(re.search(r"kv_unified\s+= true", text)),
        indexer="creating indexer KV cache" in text,
        msa_path=(_PATH.findall(text) or [""])[-1],
        dense_reason=_without_stamp(next(dense, "")),
        buffers=_buffers(text),
    )


def telling_line(tail: Sequence[str]) -> str:
    """Return the line of a failed start that says most about why.

    The first complaint is the cause; what follows are its consequences.
    """
    lines = [_without_stamp(line) for line in tail if line.strip()]
    telling = (line for line in lines if _TROUBLE.search(line))
    return next(telling, lines[-1] if lines else "it ended without a word")


def _buffers(text: str) -> dict[str, BufferUse]:
    kinds = [_sizes(pattern, text) for pattern in (_BUFFER, _KV, _COMPUTE, _OUTPUT)]
    names = dict.fromkeys(name for sizes in kinds for name in sizes)
    return {name: BufferUse(*(sizes.get(name, 0.0) for sizes in kinds)) for name in names}


def _sizes(pattern: re.Pattern[str], text: str) -> dict[str, float]:
    """Add up sizes by the buffer's name."""
    sizes: dict[str, float] = {}
    for name, size in pattern.findall(text):
        sizes[name] = sizes.get(name, 0.0) + float(size)
    return sizes


def _by_endpoint(by_name: dict[str, float]) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for name, size in by_name.items():
        endpoint = _ENDPOINT.fullmatch(name)
        key = endpoint[1] if endpoint else name
        sizes[key] = sizes.get(key, 0.0) + size
    return sizes


def _last(layers: Iterable[str]) -> str:
    return max(layers, key=int, default="")


def _without_stamp(line: str) -> str:
    return _STAMP.sub("", line).strip()
