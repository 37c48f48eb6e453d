"""The record of a cluster: what was started where, as kept in the head's state folder.

It is written before anything starts and after every step, so that `down` finds everything even if
`up` was cut off at any point.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from ggufcluster.errors import RecordError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker.

    Attributes:
        name: Shown to people and taken by `logs`.
        target: What was written after ``--worker``; ``local`` for this machine.
        run: Run folder on the worker's host.
        address: Address on which it listens.
        port: Port on which it listens; 0 until chosen.
        round_trip: Seconds of a small request.
        rate: Bytes per second towards the worker.
    """

    name: str
    target: str
    run: str
    address: str
    port: int = 0
    round_trip: float = 0.0
    rate: float = 0.0

    @property
    def endpoint(self) -> str:
        """``address:port`` as llama.cpp takes it."""
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """Layers on one device; `bytes` are weights and KV cache as planned."""

    device: str
    host: str
    first: int
    layers: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """One cluster, from its first step on.

    Attributes:
        id: Names its run folders.
        created: Seconds since the epoch.
        wish: What was asked for, to tell whether a second `up` asks for the same.
        build_id: The engine that runs on the head.
        head_run: Run folder of llama-server.
        root: Root URL of the API.
        api_key_file: File with the API keys on the head, if any.
        model: Name of the model.
        context: Tokens per slot.
        parallel: Number of slots.
        sparse: ``on``, ``off`` or ``not in this model``.
        template: ``model's own`` or the file that replaces it.
        ready: Whether the proof after the start was complete.
    """

    id: str
    created: float
    wish: str
    build_id: str
    head_run: str
    root: str
    api_key_file: str | None
    model: str
    workers: tuple[WorkerRecord, ...]
    shares: tuple[ShareRecord, ...] = ()
    context: int = 0
    parallel: int = 1
    sparse: str = ""
    template: str = ""
    ready: bool = False

    def with_worker(self, worker: WorkerRecord) -> ClusterRecord:
        """Return the record with one worker replaced, found by name."""
        workers = tuple(worker if old.name == worker.name else old for old in self.workers)
        return replace(self, workers=workers)


def fields_for_scripts(record: ClusterRecord) -> dict[str, Any]:
    """Return the fields of a record, with what was asked for as fields of their own."""
    return {**asdict(record), "wish": json.loads(record.wish)}


def to_json(record: ClusterRecord) -> bytes:
    """Serialise a record."""
    return json.dumps({"format": FORMAT, **asdict(record)}, indent=2).encode()


def from_json(data: bytes, *, source: str) -> ClusterRecord:
    """Read a record.

    Raises:
        RecordError: It was written by another version or is damaged.
    """
    try:
        fields: dict[str, Any] = json.loads(data)
        if fields.pop("format") != FORMAT:
            raise RecordError("was written by another version of ggufcluster", path=source)
        fields["workers"] = tuple(WorkerRecord(**worker) for worker in fields["workers"])
        fields["shares"] = tuple(ShareRecord(**share) for share in fields["shares"])
        return ClusterRecord(**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"is damaged: {error}", path=source) from error
