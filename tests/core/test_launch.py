"""The command lines of head and workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.launch import (
    DeviceLayers,
    LaunchSpec,
    check_extra,
    root_url,
    server_command,
    worker_command,
)
from ggufcluster.errors import ConfigError

if TYPE_CHECKING:
    from ggufcluster.core.command import Command

BIN = PurePosixPath("/engines/a b/bin")
SPEC = LaunchSpec(
    model=PurePosixPath("/models/m 1.gguf"),
    alias="MiniMax M3",
    endpoints=("10.20.20.2:50052", "10.20.20.3:50053"),
    split=(DeviceLayers("RPC0", 30), DeviceLayers("RPC1", 29), DeviceLayers("CUDA0", 1)),
    context=65536,
    parallel=2,
    kv_type="q8_0",
    ubatch=2048,
    host="127.0.0.1",
    port=8080,
    sampling=(("--temp", "1.0"), ("--top-k", "40")),
)


def options(spec: LaunchSpec) -> dict[str, str]:
    """Return each option of the server's command with the word after it."""
    words = server_command(spec, bin_folder=BIN).plain_argv()
    return dict(zip(words, [*words[1:], ""], strict=True))


def test_the_split_cuts_where_the_plan_does() -> None:
    """Devices and layer counts stand in one order, the output head counted to the last device."""
    given = options(SPEC)
    assert given["--device"] == "RPC0,RPC1,CUDA0"
    assert given["--tensor-split"] == "30,29,2"
    assert given["--rpc"] == "10.20.20.2:50052,10.20.20.3:50053"
    assert given["--split-mode"] == "layer"
    assert given["--fit"] == "off"


def test_sparse_attention_stays_possible() -> None:
    """Whatever would switch sparse attention off in silence is set explicitly."""
    given = options(SPEC)
    assert given["--parallel"] == "2"
    assert given["--flash-attn"] == "on"
    assert "--no-kv-unified" in given
    assert given["--ctx-size"] == "131072"


def test_memory_and_batches_follow_the_spec() -> None:
    """Cache types, batch sizes, loading without mmap and no prompt cache are as specified."""
    given = options(SPEC)
    assert given["--cache-type-k"] == given["--cache-type-v"] == "q8_0"
    assert given["--ubatch-size"] == given["--batch-size"] == "2048"
    assert given["--load-mode"] == "none"
    assert given["--cache-ram"] == "0"


def test_what_is_not_asked_for_is_left_away() -> None:
    """Without workers, template and keys there are no options for them."""
    alone = replace(SPEC, endpoints=(), split=())
    given = options(alone)
    absent = {"--rpc", "--device", "--tensor-split", "--chat-template-file", "--api-key-file"}
    assert not absent & given.keys()
    full = replace(alone, template=PurePosixPath("/t.jinja"), api_key_file=PurePosixPath("/keys"))
    assert options(full)["--chat-template-file"] == "/t.jinja"
    assert options(full)["--api-key-file"] == "/keys"


def test_extra_options_come_last() -> None:
    """Options of the user stand after the family's sampling, so that they win."""
    words = server_command(replace(SPEC, extra=("--temp", "0.2")), bin_folder=BIN).plain_argv()
    assert words[0] == "/engines/a b/bin/llama-server"
    assert words[-2:] == ["--temp", "0.2"]
    assert words.index("1.0") < words.index("0.2")


@pytest.mark.parametrize(
    "word",
    ["--rpc", "--ctx-size=4096", "-ngl", "-lv", "--api-key", "--chat-template", "--no-jinja"],
)
def test_an_option_that_contradicts_the_plan_is_refused(word: str) -> None:
    """What ggufcluster decides cannot be given once more after --, in either spelling."""
    with pytest.raises(ConfigError, match="decided by ggufcluster"):
        replace(SPEC, extra=("--threads", "4", word))


def test_a_stray_word_is_refused() -> None:
    """A worker named without --worker is not passed to llama-server."""
    with pytest.raises(ConfigError, match=r"'local:2' is no option; .* --worker"):
        check_extra(("local:2",))
    check_extra(())


def test_a_worker_listens_on_its_address_and_caches() -> None:
    """The RPC server gets address, port and its file cache, and nothing else."""
    call = worker_command(bin_folder=BIN, address="10.20.20.2", port=50052)
    assert call.plain_argv() == [
        "/engines/a b/bin/ggml-rpc-server",
        *("--host", "10.20.20.2", "--port", "50052", "--cache"),
    ]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://127.0.0.1:80"),
        ("fd00::1", "http://[fd00::1]:80"),
        ("spark", "http://spark:80"),
    ],
)
def test_the_root_url_can_be_reached(host: str, url: str) -> None:
    """An address that means all addresses becomes this machine's; IPv6 stands in brackets."""
    assert root_url(host, 80) == url


def test_the_type_of_index_keys_goes_by_the_environment() -> None:
    """llama-server has no option for it; the default needs no word."""
    name = "GGUFCLUSTER_MSA_INDEX_TYPE"
    for kind, given in ((None, None), ("f16", None), ("q8_0", "q8_0")):
        command = server_command(replace(SPEC, index_type=kind), bin_folder=BIN)
        assert command.env.get(name) == given


@pytest.mark.parametrize(
    "call",
    [
        server_command(SPEC, bin_folder=BIN),
        server_command(replace(SPEC, index_type="q8_0"), bin_folder=BIN),
        worker_command(bin_folder=BIN, address="10.20.20.2", port=50052),
    ],
    ids=["head", "head with another variable", "worker"],
)
def test_no_program_of_a_cluster_stops_for_a_backtrace(call: Command) -> None:
    """Head and worker are told to end at a failed assertion, which printing a trace may prevent."""
    assert call.env["GGML_NO_BACKTRACE"] == "1"
    assert call.shown().startswith("env GGML_NO_BACKTRACE=1 ")
