"""Remove what engines of other versions left in the cache of a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core import prune as plan
from ggufcluster.core.build_script import sweep_command
from ggufcluster.core.prune import Entry, Kept, Kind
from ggufcluster.core.units import size_text
from ggufcluster.workflows.events import Finished, Progress, Started, Unit, Workflow
from ggufcluster.workflows.source import locate_source, read_vendor, source_fingerprint

if TYPE_CHECKING:
    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.paths import HostPaths
    from ggufcluster.workflows.build import BuildRequest

_SURVEY_SECONDS = 300.0  # measuring reads every folder of every source tree
_REMOVE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Pruned:
    """What became of one host's cache.

    Attributes:
        cache: Its folder on that host.
        removed: What went, or would go.
        kept: What of other versions stays, and why.
    """

    cache: str
    removed: tuple[Entry, ...]
    kept: tuple[Kept, ...]

    @property
    def size(self) -> int:
        """Bytes on disk of what went."""
        return sum(entry.size for entry in self.removed)


def current_fingerprints(request: BuildRequest) -> frozenset[str]:
    """Return the versions that this installation uses: the pinned one, and that of ``--source``.

    Raises:
        SourceError: The source is not what it should be.
    """
    vendor = read_vendor(request.vendor)
    sources = {None, request.source}
    return frozenset(
        source_fingerprint(locate_source(vendor.pin, source), vendor) for source in sources
    )


def prune(
    remote: Remote,
    paths: HostPaths,
    *,
    fingerprints: frozenset[str],
    recorded: frozenset[str] = frozenset(),
    dry_run: bool = False,
) -> Workflow[Pruned]:
    """Remove engines, build folders and sources of other versions that nothing uses.

    Args:
        remote: The host.
        paths: Its folders.
        fingerprints: Versions that stay.
        recorded: Build ids that a record names; they stay as well.
        dry_run: Only look.

    Raises:
        HostError: The host cannot be reached, or a command on it failed.
    """
    found = remote.run(plan.survey_command(paths.cache), timeout=_SURVEY_SECONDS)
    survey = plan.parse_survey(paths.cache, found.stdout)
    chosen, kept = plan.choose(survey, fingerprints=fingerprints, recorded=recorded)
    if dry_run:
        return Pruned(str(survey.cache), chosen, kept)
    for kind in Kind:  # what an interrupted removal has left
        remote.run(sweep_command(survey.cache / kind.value), timeout=_REMOVE_SECONDS)
    if not chosen:
        return Pruned(str(survey.cache), chosen, kept)
    label = f"Removing old engines on {remote.name}"
    total = sum(entry.size for entry in chosen)
    yield Started(label)
    removed: list[Entry] = []
    busy: list[Kept] = []
    for entry in chosen:
        command = plan.remove_command(survey.cache, entry)
        outcome = remote.run(command, timeout=_REMOVE_SECONDS).stdout.split()
        if outcome[-1:] == ["removed"]:
            removed.append(entry)
        else:
            busy.append(Kept(entry, "a build has begun"))
        yield Progress(label, sum(entry.size for entry in removed), total, Unit.BYTES)
    pruned = Pruned(str(survey.cache), tuple(removed), (*kept, *busy))
    yield Finished(label, f"{size_text(pruned.size)} freed")
    return pruned
