"""Say how the cluster is, without disturbing it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggufcluster.core.managed_process import Life
from ggufcluster.core.secret import Secret
from ggufcluster.core.worker_address import SshWorker, parse_worker
from ggufcluster.errors import ConfigError, HeadError, HostError
from ggufcluster.workflows import processes

if TYPE_CHECKING:
    from ggufcluster.adapters.http import Api
    from ggufcluster.core.record import ClusterRecord, WorkerRecord
    from ggufcluster.workflows.seams import Seams


STILL_LOADING = "the head is still loading"
_HEAD_WORDS = {
    "loading": "is still loading",
    "down": "runs but does not answer",
    "ended": "has ended",
}


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a cluster.

    Attributes:
        record: What was started.
        head: State of llama-server: ``ok``, ``loading``, ``down``, ``frozen`` or ``ended``.
        workers: State of each worker by name: ``alive``, ``frozen``, ``dead``, ``absent`` or why
            it is unknown.
        slots: Number of slots that are busy, or None if the head does not say.
        engine: What the head says of its build.
        uptime: Seconds since the cluster was started.
        problems: Everything that is wrong, in sentences; empty when healthy.
    """

    record: ClusterRecord
    head: str
    workers: dict[str, str]
    slots: int | None
    engine: str
    uptime: float
    problems: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether everything is as it should be."""
        return not self.problems


def status(seams: Seams, record: ClusterRecord) -> Status:
    """Inspect every process of a cluster and ask the head, never a worker's RPC port.

    A worker serves one client: asking it in its own protocol while it is busy could harm it.
    """
    api = open_api(seams, record)
    head = _head_state(seams, record, api)
    workers = {worker.name: _worker_state(seams, worker) for worker in record.workers}
    slots, engine = _ask(api) if head == "ok" else (None, "")
    return Status(
        record=record,
        head=head,
        workers=workers,
        slots=slots,
        engine=engine,
        uptime=max(0.0, seams.now() - record.created),
        problems=tuple(_problems(record, head, workers)),
    )


def open_api(seams: Seams, record: ClusterRecord) -> Api:
    """Open the API of the record's head with its first key, if it wants one."""
    return seams.api(record.root, read_key(record.api_key_file))


def read_key(api_key_file: str | None, *, source: str = "head.api_key_file") -> Secret | None:
    """Return the first key of a key file, read as llama-server reads it.

    Args:
        api_key_file: The file; None means that no key is needed.
        source: What named it.

    Raises:
        ConfigError: It cannot be read or holds no key: llama-server would ask for none then.
    """
    if not api_key_file:
        return None
    try:
        lines = Path(api_key_file).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "they are not ASCII text"
        told = f"{api_key_file} cannot be read: {reason}"
        raise ConfigError(told, source=source) from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{api_key_file} holds no API key", source=source)
    return Secret(keys[0])


def _head_state(seams: Seams, record: ClusterRecord, api: Api) -> str:
    life = processes.inspect(seams.local, record.head_run).life
    if life is Life.FROZEN:
        return "frozen"
    return api.health() if life is Life.ALIVE else "ended"


def _worker_state(seams: Seams, worker: WorkerRecord) -> str:
    target = parse_worker(worker.target)
    try:
        remote = seams.connect(target) if isinstance(target, SshWorker) else seams.local
        return processes.inspect(remote, worker.run).life.value
    except HostError as error:
        return f"unknown: {error}"


def _ask(api: Api) -> tuple[int | None, str]:
    try:
        slots: list[dict[str, Any]] = api.get("/slots")
        engine = str(api.get("/props").get("build_info", ""))
    except HeadError:
        return None, ""
    return sum(bool(slot.get("is_processing")) for slot in slots), engine


def _problems(record: ClusterRecord, head: str, workers: dict[str, str]) -> list[str]:
    problems = []
    if head != "ok":
        problems.append(f"the head {_HEAD_WORDS.get(head, 'is ' + head)}")
    elif not record.ready:
        problems.append("the start was not completed")
    for name, state in workers.items():
        if state != Life.ALIVE.value:
            verb = "state is " if state.startswith("unknown") else "is "
            problems.append(f"{name} {verb}{state}")
    return problems
