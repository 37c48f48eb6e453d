"""What is learnt of a host."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ggufcluster.core.host import (
    BigProcess,
    drop_caches_command,
    facts_command,
    free_port,
    parse_facts,
)
from ggufcluster.core.units import GIB

PROBES = Path(__file__).parents[1] / "data" / "probes"


def captured(name: str) -> str:
    """Return the probe's output as captured on some host."""
    return (PROBES / f"facts-{name}.txt").read_text(encoding="utf-8")


def test_a_spark_is_read_in_full() -> None:
    """Every fact of a machine with unified memory comes out, in bytes and as numbers."""
    facts = parse_facts(captured("dgx-spark"))
    assert (facts.name, facts.user) == ("spark-1", "spark")
    assert facts.machine_id == "0123456789abcdef0123456789abcdef"
    assert facts.memory_total == 125513728 * 1024
    assert facts.memory_available == 121634816 * 1024
    assert facts.listening == {22, 50052, 8080}
    assert facts.gpus == ("NVIDIA GB10",)
    assert facts.guards == ("earlyoom",)
    assert not facts.may_drop_caches
    assert facts.processes == (
        BigProcess(4242, "llama-server", 10 * GIB),
        BigProcess(5150, "my python app", 2 * GIB),
        BigProcess(4242, "/usr/bin/llama-server", 0),
        BigProcess(6001, "python, with a comma", 8 * GIB),
    )


def test_a_driver_that_complains_is_no_gpu() -> None:
    """What nvidia-smi prints when its driver does not answer is not taken for devices."""
    facts = parse_facts(captured("broken-driver"))
    assert facts.gpus == ()
    assert facts.processes == ()
    assert facts.may_drop_caches


def test_this_machine_answers_the_probe() -> None:
    """A plain POSIX shell runs the whole probe, and its answer is complete and plausible."""
    argv = facts_command().plain_argv()
    run = subprocess.run(argv, capture_output=True, text=True, check=True)
    facts = parse_facts(run.stdout)
    assert 0 < facts.memory_available <= facts.memory_total
    assert facts.machine_id
    assert facts.name


def test_a_probe_that_broke_off_is_noticed() -> None:
    """An answer without its end is not half believed."""
    with pytest.raises(ValueError, match="broke off"):
        parse_facts(captured("dgx-spark").partition("@guards")[0])


def test_hogs_are_the_big_and_the_unknown_ones_of_others() -> None:
    """Processes with much or unknown memory are named, biggest first, our own left out."""
    facts = parse_facts(captured("dgx-spark"))
    hogs = facts.memory_hogs(ours=frozenset())
    assert [(hog.pid, hog.memory) for hog in hogs] == [(4242, 10 * GIB), (6001, 8 * GIB), (4242, 0)]
    assert [hog.pid for hog in facts.memory_hogs(ours=frozenset({4242}))] == [6001]


@pytest.mark.parametrize(
    ("preferred", "taken", "port"),
    [
        (50052, set(), 50052),
        (50052, {50052, 50053}, 50054),
        (65535, {65535}, None),
        (50052, set(range(50052, 50152)), None),
    ],
)
def test_the_first_free_port_is_taken(preferred: int, taken: set[int], port: int | None) -> None:
    """The search goes upwards, ends at the last port there is, and gives up after a hundred."""
    assert free_port(preferred, frozenset(taken)) == port


def test_freeing_the_page_cache_never_asks_for_a_password() -> None:
    """Whoever is not root uses sudo without a prompt, or fails."""
    text = drop_caches_command().shown()
    assert "sudo -n " in text
    assert text.count("sudo") == 1


def test_memory_and_links_are_read_where_the_system_tells_them() -> None:
    """A driver's numbers are MiB, a port's speed is Mb/s; what is not told is not guessed."""
    text = captured("dgx-spark").replace(
        "@end",
        "@links\n127.0.0.1 \n10.20.20.1 200000\n192.168.1.5 -1\n@end",
    )
    facts = parse_facts(text)
    assert facts.gpu_memory == (None,)
    assert facts.unified
    assert facts.links == {"10.20.20.1": 200_000_000_000, "192.168.1.5": 0}
    discrete = parse_facts(text.replace("[N/A], [N/A]", "24576, 1024", 1))
    assert discrete.gpu_memory == ((23 * GIB, 24 * GIB),)
    assert not discrete.unified


def test_this_machine_tells_its_addresses() -> None:
    """The real probe lists the ports that have a speed, and breaks on none that has not."""
    command = facts_command()
    run = subprocess.run(command.plain_argv(), capture_output=True, text=True, check=True)
    assert all(speed >= 0 for speed in parse_facts(run.stdout).links.values())
