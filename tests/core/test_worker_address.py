"""How a worker may be named."""

from __future__ import annotations

import pytest

from ggufcluster.core.worker_address import (
    LocalWorkers,
    SshWorker,
    WorkerAddress,
    check_workers,
    parse_worker,
    require_endpoint,
)
from ggufcluster.errors import WorkerAddressError

OWN = ("10.20.20.1", "192.168.1.5", "fe80::1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.20.20.2", SshWorker("10.20.20.2")),
        ("spark-2", SshWorker("spark-2")),
        ("ada@spark_2.lan:2222", SshWorker("spark_2.lan", user="ada", port=2222)),
        ("[fe80::2]", SshWorker("fe80::2")),
        ("ada@[fd00::2]:22", SshWorker("fd00::2", user="ada", port=22)),
        ("local", LocalWorkers(1)),
        ("local:3", LocalWorkers(3)),
        ("localhost", SshWorker("localhost")),
    ],
)
def test_accepted_forms(text: str, expected: WorkerAddress) -> None:
    """Each documented form is read into its parts."""
    assert parse_worker(text) == expected


@pytest.mark.parametrize(
    "text",
    ["10.20.20.2", "ada@spark:2222", "[fd00::2]", "ada@[fd00::2]:22", "local", "local:3"],
)
def test_an_address_prints_as_it_was_written(text: str) -> None:
    """Printing an address gives the text that it was read from."""
    assert str(parse_worker(text)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "host is empty"),
        (":22", "host is empty"),
        ("ada@", "host is empty"),
        ("@spark", "no login name"),
        ("-oProxyCommand=x@spark", "no login name"),
        ("a b@spark", "spaces"),
        ("spark ", "spaces"),
        ("spark\n", "spaces"),
        ("-oProxyCommand=x", "no host name"),
        ("spark;reboot", "no host name"),
        ("spark/x", "no host name"),
        ("spark:", "SSH port"),
        ("spark:0", "SSH port"),
        ("spark:65536", "SSH port"),
        ("spark:ssh", "SSH port"),
        ("spark:²", "SSH port"),
        ("fe80::2", "[address]:port"),
        ("[fe80::2", "[address]:port"),
        ("[10.20.20.2]", "no IPv6"),
        ("[]", "no IPv6"),
        ("10.20.20", "no IPv4"),
        ("10.20.20.256", "no IPv4"),
        ("local:0", "from 1 to 16"),
        ("local:17", "from 1 to 16"),
        ("local:", "from 1 to 16"),
        ("local:x", "from 1 to 16"),
    ],
)
def test_refused_forms(text: str, reason: str) -> None:
    """Anything else is refused with the text and the reason."""
    with pytest.raises(WorkerAddressError) as caught:
        parse_worker(text)

    assert caught.value.worker == text
    assert reason in caught.value.reason


def test_different_workers_pass() -> None:
    """Machines that differ in address or SSH port may stand beside local workers."""
    workers = [parse_worker(text) for text in ("local:2", "a", "b", "gate:2201", "gate:2202")]
    resolved = {"a": ["10.20.20.2"], "b": ["10.20.20.3"], "gate": ["10.20.20.4"]}

    check_workers(workers, resolved, OWN)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("10.20.20.2", "10.20.20.2"),
        ("10.20.20.2", "ada@10.20.20.2:22"),
        ("spark", "SPARK"),
        ("spark", "10.20.20.2"),
        ("spark", "alias"),
        ("[fd00::2]", "[fd00:0::2]"),
        ("behind-a-jump-host", "behind-a-jump-host"),
        ("local", "local:2"),
    ],
)
def test_the_same_worker_twice_is_refused(first: str, second: str) -> None:
    """Two names of one machine are refused, naming the second."""
    resolved = {"spark": ["10.20.20.2"], "alias": ["10.9.9.9", "10.20.20.2"]}

    with pytest.raises(WorkerAddressError) as caught:
        check_workers([parse_worker(first), parse_worker(second)], resolved, OWN)

    assert caught.value.worker == second


@pytest.mark.parametrize(
    "text",
    ["10.20.20.1", "head", "127.0.0.1", "127.1.2.3", "0.0.0.0", "[::1]", "[::]", "[fe80::1]"],
)
def test_the_head_itself_is_refused(text: str) -> None:
    """An endpoint on this machine is refused with the hint to write local."""
    with pytest.raises(WorkerAddressError, match="write 'local'") as caught:
        check_workers([parse_worker(text)], {"head": ["fe80::1%eth0"]}, OWN)

    assert caught.value.worker == text


def test_an_endpoint_is_an_address_and_a_port() -> None:
    """It is taken as it is."""
    assert require_endpoint("10.20.20.2:50052") == "10.20.20.2:50052"


@pytest.mark.parametrize("text", ["a", "a:", ":1", "a:0", "a:65536", "a:x", "a:\u0663"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    """The error names it and says how one is written."""
    with pytest.raises(WorkerAddressError, match="address:port") as caught:
        require_endpoint(text)

    assert caught.value.worker == text
