"""The outside worlds that the cluster workflows touch, gathered so that tests can replace them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from ggufcluster.adapters.http import Api
    from ggufcluster.adapters.remote import FarRemote, Remote
    from ggufcluster.adapters.rpc import LinkSpeed, WorkerReport
    from ggufcluster.core.secret import Secret
    from ggufcluster.core.worker_address import SshWorker


class ProbeWorker(Protocol):
    """Shake hands with an idle worker and read its memory."""

    def __call__(self, endpoint: str, fingerprint: str, *, timeout: float) -> WorkerReport:
        """Raises `WorkerFingerprintError` or `WorkerNotReadyError`."""


class MeasureLink(Protocol):
    """Time the link to an idle worker."""

    def __call__(self, endpoint: str, fingerprint: str, *, timeout: float) -> LinkSpeed:
        """Raises `WorkerError`."""


@dataclass(frozen=True, slots=True)
class Seams:
    """Everything through which a workflow reaches out.

    Attributes:
        local: This machine.
        connect: Opens a host over SSH.
        probe: Asks a worker who it is.
        measure: Times the link to a worker.
        try_listen: Listens on a host and port of this machine for a moment; raises OSError.
        api: Opens the API of a llama-server by root URL and key.
        clock: Monotonic seconds.
        now: Seconds since the epoch.
        sleep: Waits that many seconds.
    """

    local: Remote
    connect: Callable[[SshWorker], FarRemote]
    probe: ProbeWorker
    measure: MeasureLink
    try_listen: Callable[[str, int], None]
    api: Callable[[str, Secret | None], Api]
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
