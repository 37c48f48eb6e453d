"""What llama-server says of itself while it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ggufcluster.core.server_log import BufferUse, parse_server_log, telling_line

LOG = Path(__file__).parents[1] / "data" / "server_logs" / "sparse-two-workers.txt"
DENSE = (
    "0.00.094.920 W graph: unified KV cache with n_seq_max > 1; MSA needs per-sequence streams ->"
    " running DENSE attention. Output may be degraded. Drop --kv-unified to enable MSA."
)


def lines() -> list[str]:
    """Return the log of a start with sparse attention over two workers."""
    return LOG.read_text(encoding="utf-8").splitlines()


def test_layers_are_counted_without_the_output_head() -> None:
    """Of nine lines the last is the output head; the other eight are layers on their devices."""
    assert parse_server_log(lines()).layers == {"RPC0": 5, "RPC1": 3}


def test_memory_is_told_by_endpoint() -> None:
    """Workers go by endpoint, other devices by name, and several buffers of one are added up."""
    report = parse_server_log(lines())
    assert report.weights == {
        "CPU_Mapped": 0.04,
        "10.20.20.2:50052": 2.72,
        "10.20.20.3:50052": 1.96,
    }
    assert report.kv_cache == {"10.20.20.2:50052": 92.0, "10.20.20.3:50052": 60.0}
    assert report.compute["10.20.20.3:50052"] == 331.91


def test_sparse_attention_is_believed_only_with_all_its_signs() -> None:
    """Indexer cache, flash attention, separate KV caches and no complaint make it sparse."""
    assert parse_server_log(lines()).sparse_attention


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("flash_attn            = enabled", "flash_attn            = disabled"),
        ("kv_unified            = false", "kv_unified            = true"),
        ("creating indexer KV cache", "creating KV cache"),
        ("model loaded", "model loaded\n" + DENSE),
    ],
)
def test_any_missing_sign_makes_it_dense(old: str, new: str) -> None:
    """Each single sign against sparse attention is enough."""
    text = LOG.read_text(encoding="utf-8")
    assert old in text
    assert not parse_server_log(text.replace(old, new).splitlines()).sparse_attention


def test_the_reason_for_dense_attention_is_kept() -> None:
    """llama.cpp's own words stay, without its time stamp."""
    reason = parse_server_log([*lines(), DENSE]).dense_reason
    assert reason.startswith("graph: unified KV cache")


def test_an_empty_log_tells_nothing() -> None:
    """No line gives no layers and no sparse attention, but no error."""
    report = parse_server_log([])
    assert (report.layers, report.weights, report.sparse_attention) == ({}, {}, False)


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        ([], "it ended without a word"),
        (["", "0.00.1 I loading", "  "], "loading"),
        (
            [
                "0.00.1 I loading",
                "ggufcluster: error: worker 10.20.20.2:50052 refused the connection",
                "0.00.2 E failed to load model",
            ],
            "ggufcluster: error: worker 10.20.20.2:50052 refused the connection",
        ),
        (["0.00.1 I loading", "0.00.2 E srv: out of memory", "exiting"], "srv: out of memory"),
    ],
)
def test_the_first_complaint_is_the_cause(tail: list[str], line: str) -> None:
    """Of a failed start the first complaint is shown, else its last words."""
    assert telling_line(tail) == line


def test_the_path_of_sparse_attention_is_read() -> None:
    """The last word on the path counts; a log without one names none."""
    said = [f"I ggufcluster: sparse attention: {path} path" for path in ("generic", "native")]
    assert parse_server_log([*lines(), *said]).msa_path == "native"
    assert parse_server_log(lines()).msa_path == ""


def test_buffers_are_told_by_their_own_names() -> None:
    """Each device of each worker stands apart, and both caches of sparse attention are one sum."""
    said = [
        "I load_tensors: RPC1[10.0.0.2:1] model buffer size =     2.00 MiB",
        "I llama_kv_cache: RPC1[10.0.0.2:1] KV buffer size =    16.00 MiB",
        "I llama_kv_cache: RPC1[10.0.0.2:1] KV buffer size =     1.00 MiB",
        "I sched_reserve: RPC1[10.0.0.2:1] compute buffer size =    27.55 MiB",
        "I sched_reserve:  CUDA_Host compute buffer size =     5.39 MiB",
        "I llama_context:  CUDA_Host  output buffer size =     0.76 MiB",
    ]
    assert parse_server_log(said).buffers == {
        "RPC1[10.0.0.2:1]": BufferUse(2.0, 17.0, 27.55, 0.0),
        "CUDA_Host": BufferUse(0.0, 0.0, 5.39, 0.76),
    }
