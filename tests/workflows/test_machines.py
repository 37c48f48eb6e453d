"""Learning what the plan must know of a host."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from ggufcluster.adapters.local import LocalRemote
from ggufcluster.errors import HostError, HostUnreachableError
from ggufcluster.testing import FakeRemote
from ggufcluster.workflows.machines import survey
from tests.workflows.fakes import Host


def test_folders_and_facts_come_together() -> None:
    """A machine has the way to it, its own folders and what was found on it."""
    host = Host("me@spark", home="/home/w")
    machine = survey(host)
    assert machine.name == "me@spark"
    assert machine.remote is host
    assert machine.paths.state == PurePosixPath("/home/w/state/ggufcluster")
    assert machine.facts.machine_id == "machine-of-me@spark"


def test_this_machine_can_be_surveyed() -> None:
    """The real probes work in a real shell."""
    assert survey(LocalRemote()).facts.memory_total > 0


def test_a_host_that_makes_no_sense_is_named() -> None:
    """A machine that is no Linux, or answers strangely, is an error of that host."""
    strange = FakeRemote(name="me@mac").on("XDG_CACHE_HOME", "/c\n/s\n/k\n/d\n")
    strange.on("say name", "@name\nmac\n@memory\n@end\n")
    with pytest.raises(HostError, match="me@mac does not answer like a Linux machine") as caught:
        survey(strange)
    assert caught.value.host == "me@mac"


def test_an_unreachable_host_is_an_error_of_its_own() -> None:
    """The error of the way to it passes through."""
    host = Host("me@spark")
    host.reachable = False
    with pytest.raises(HostUnreachableError):
        survey(host)
