"""Open the hosts of a cluster and learn what the plan must know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core import paths
from ggufcluster.core.command import script
from ggufcluster.core.host import HostFacts, facts_command, parse_facts
from ggufcluster.errors import HostError

if TYPE_CHECKING:
    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.paths import HostPaths

PROBE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Machine:
    """One host: the way to it, its folders and what was found on it."""

    remote: Remote
    paths: HostPaths
    facts: HostFacts

    @property
    def name(self) -> str:
        """Name for people."""
        return self.remote.name


def survey(remote: Remote) -> Machine:
    """Learn the folders and facts of a host.

    Raises:
        HostError: It cannot be reached, or is not the Linux machine that it must be.
    """
    folders = remote.run(script(paths.PROBE), timeout=PROBE_SECONDS).stdout
    facts = remote.run(facts_command(), timeout=PROBE_SECONDS).stdout
    try:
        return Machine(remote, paths.paths_from_probe(folders), parse_facts(facts))
    except (ValueError, LookupError) as error:
        reason = f"{remote.name} does not answer like a Linux machine: {error}"
        raise HostError(reason, host=remote.name) from error
