"""Bring a cluster up: from a wish to a proven, running llama-server, or to nothing at all."""

from __future__ import annotations

import errno
import secrets
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.core.build_id import Backend
from ggufcluster.core.command import Command, command
from ggufcluster.core.devices import (
    LOCAL,
    WorkerMemory,
    head_cpu,
    head_devices,
    worker_devices,
)
from ggufcluster.core.engine import PROGRAM_VARIABLES
from ggufcluster.core.family import family_of
from ggufcluster.core.host import drop_caches_command
from ggufcluster.core.launch import check_extra, root_url, server_command
from ggufcluster.core.placement import check_count
from ggufcluster.core.plan import make_plan
from ggufcluster.core.record import ClusterRecord, ShareRecord, WorkerRecord
from ggufcluster.core.server_log import parse_server_log
from ggufcluster.core.sockets import holder, holder_command
from ggufcluster.core.wish import differences
from ggufcluster.core.worker_address import LocalWorkers, SshWorker, check_workers, parse_worker
from ggufcluster.errors import (
    ClusterBusyError,
    ConfigError,
    GgufClusterError,
    PortTakenError,
)
from ggufcluster.workflows import processes, workers
from ggufcluster.workflows.choose_template import ChosenTemplate, choose_template
from ggufcluster.workflows.down import take_down
from ggufcluster.workflows.events import Note, Warned, Workflow, drain
from ggufcluster.workflows.loading import LoadWatch
from ggufcluster.workflows.machines import Machine, survey
from ggufcluster.workflows.models import find_model, judge_model
from ggufcluster.workflows.plan_notes import compare, describe
from ggufcluster.workflows.proof import prove
from ggufcluster.workflows.status import open_api, read_key, status

if TYPE_CHECKING:
    from collections.abc import Callable

    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.engine import Engine
    from ggufcluster.core.model import ModelFacts
    from ggufcluster.core.plan import Plan
    from ggufcluster.core.wish import Wish
    from ggufcluster.workflows.seams import Seams
    from ggufcluster.workflows.store import Store

_SHORT = 30.0
_DROP_SECONDS = 120.0
_LINK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Engines:
    """How engines come about; the command line wires these to build and deploy."""

    on_head: Callable[[], Workflow[Engine]]
    on_worker: Callable[[Remote, Engine], Workflow[Engine]]


@dataclass(slots=True)
class Up:
    """One `up`; call `run` once.

    Attributes:
        seams: The outside worlds.
        engines: How engines come about.
        store: Where the record is kept.
        wish: What is asked for.
    """

    seams: Seams
    engines: Engines
    store: Store
    wish: Wish
    _machines: dict[str, Machine] = field(default_factory=dict)
    _memories: dict[str, WorkerMemory] = field(default_factory=dict)

    def run(self) -> Workflow[ClusterRecord]:
        """Bring the cluster up and return its record; whatever fails, nothing is left running.

        Raises:
            GgufClusterError: Of the kind that tells what failed.
        """
        with self.store.writer():
            present = self.store.load()
            if present is not None:
                if (yield from self._keep(present)):
                    return present
                yield from take_down(self.seams, self.store, present)
            return (yield from self._bring_up())

    def _keep(self, present: ClusterRecord) -> Workflow[bool]:
        """Say whether the cluster of the record already is what is asked for."""
        if not status(self.seams, present).healthy:
            yield Note("an earlier cluster is not healthy: it is taken down first")
            return False
        if odd := differences(present.wish, self.wish.shape()):
            raise ClusterBusyError("the head", holder="a cluster with " + ", ".join(odd))
        yield Note("the cluster is already up")
        return True

    def _bring_up(self) -> Workflow[ClusterRecord]:
        check_extra(self.wish.extra)
        head = survey(self.seams.local)
        model_path, model = yield from self._model(head)
        template = yield from choose_template(
            self.wish, model.template, model_path, remote=head.remote, state=Path(head.paths.state)
        )
        read_key(str(self.wish.api_key_file) if self.wish.api_key_file else None)
        self._check_port(head)
        targets = self._connect(head)
        check_count(model.name, model.layers, len(targets))
        engine = yield from self.engines.on_head()
        workers.require_driver(head, engine)
        record = self._new_record(head, engine, model, targets)
        for machine in {id(m): m for m in (head, *self._machines.values())}.values():
            yield from self._prepare(machine, owner=workers.owner_of(head))
        self.store.save(record)
        try:
            record = yield from self._start_workers(record, head, engine)
            return (yield from self._start_head(record, head, engine, model_path, model, template))
        except BaseException as error:
            self._undo(record.id, error)
            raise

    def _model(self, head: Machine) -> Workflow[tuple[Path, ModelFacts]]:
        path = find_model(self.wish.model, Path(head.paths.models))
        found = judge_model(path)
        for warning in found.warnings:
            yield Warned(warning)
        return path, found.facts

    def _check_port(self, head: Machine) -> None:
        address = f"{self.wish.host}:{self.wish.port}"
        try:
            self.seams.try_listen(self.wish.host, self.wish.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = f"cannot listen on {address}: {error.strerror}"
                key = "head.port" if error.errno == errno.EACCES else "head.host"
                raise ConfigError(reason, source=key) from error
            listing = head.remote.run(holder_command(self.wish.port), timeout=_SHORT, check=False)
            raise PortTakenError(address, holder=holder(listing.stdout)) from error

    def _connect(self, head: Machine) -> list[tuple[str, str, str]]:
        """Open every host; return name, target and address of each worker."""
        wanted = [parse_worker(text) for text in self.wish.workers]
        check_workers(wanted, {}, ())
        found: list[tuple[str, str, str]] = []
        for address in wanted:
            if isinstance(address, LocalWorkers):
                names = workers.local_names(address.count)
                found += [(name, "local", "127.0.0.1") for name in names]
                self._machines |= dict.fromkeys(names, head)
            else:
                found.append(self._connect_one(address))
        far = [(target, where) for _, target, where in found if target != "local"]
        workers.refuse_twins(far)
        return found

    def _connect_one(self, address: SshWorker) -> tuple[str, str, str]:
        remote = self.seams.connect(address)
        peer = workers.worker_address(remote, address, allow_public=self.wish.allow_public)
        name = address.host
        self._machines[name] = survey(remote)
        return name, str(address), peer

    def _new_record(
        self,
        head: Machine,
        engine: Engine,
        model: ModelFacts,
        targets: list[tuple[str, str, str]],
    ) -> ClusterRecord:
        cluster = secrets.token_hex(4)
        return ClusterRecord(
            id=cluster,
            created=self.seams.now(),
            wish=self.wish.shape(),
            build_id=engine.build_id,
            head_run=str(workers.runs_folder(head) / cluster / "head"),
            root=root_url(self.wish.host, self.wish.port),
            api_key_file=str(self.wish.api_key_file) if self.wish.api_key_file else None,
            model=model.name,
            workers=tuple(
                WorkerRecord(
                    name=name,
                    target=target,
                    run=str(workers.runs_folder(self._machines[name]) / cluster / name),
                    address=address,
                )
                for name, target, address in targets
            ),
        )

    def _prepare(self, machine: Machine, *, owner: str) -> Workflow[None]:
        yield from workers.clear_stale(machine, owner=owner)
        yield from workers.warn_of_company(machine)
        if not self.wish.drop_caches:
            return
        if machine.facts.may_drop_caches:
            machine.remote.run(drop_caches_command(), timeout=_DROP_SECONDS)
            yield Note(f"{machine.name}: page cache freed")
        else:
            yield Warned(f"{machine.name}: may not free the page cache without a password")

    def _start_workers(
        self, record: ClusterRecord, head: Machine, engine: Engine
    ) -> Workflow[ClusterRecord]:
        for worker in record.workers:
            machine = self._machines[worker.name]
            local = machine is head
            on_worker = engine
            if not local:
                on_worker = yield from self.engines.on_worker(machine.remote, engine)
                workers.require_driver(machine, on_worker)
            # Ports taken by a worker started a moment ago must be seen.
            machine = survey(machine.remote)
            started, report = yield from workers.start_worker(
                self.seams,
                machine,
                worker,
                bin_folder=on_worker.bin,
                fingerprint=engine.fingerprint,
                owner=workers.owner_of(head),
                ready_seconds=self.wish.ready_seconds,
            )
            self._memories[worker.name] = WorkerMemory(
                worker.name,
                machine=LOCAL if local else worker.name,
                devices=tuple((device.free, device.total) for device in report.devices),
                gpu=on_worker.backend is Backend.CUDA,
                chips=machine.facts.gpus if on_worker.backend is Backend.CUDA else (),
                endpoint=started.endpoint,
            )
            if not local:
                link = self.seams.measure(
                    started.endpoint, engine.fingerprint, timeout=_LINK_SECONDS
                )
                started = yield from workers.describe_link(started, link)
            record = record.with_worker(started)
            self.store.save(record)
        return record

    def _start_head(
        self,
        record: ClusterRecord,
        head: Machine,
        engine: Engine,
        path: Path,
        model: ModelFacts,
        template: ChosenTemplate,
    ) -> Workflow[ClusterRecord]:
        plan = self._plan(record, head, engine, path, model, template)
        yield from describe(plan)
        program = server_command(plan.spec, bin_folder=engine.bin)
        record = _with_plan(record, plan, model, template)
        self.store.save(record)
        processes.start(head.remote, record.head_run, program, owner=workers.owner_of(head))
        api = open_api(self.seams, record)
        watch = LoadWatch(
            seams=self.seams,
            head=head,
            record=record,
            api=api,
            machines=self._machines,
            expected=_expected(record, plan),
            stall_seconds=self.wish.stall_seconds,
        )
        yield from watch.run()
        log = self.seams.local.run(
            command("cat", processes.log_path(record.head_run)), timeout=_SHORT
        )
        report = parse_server_log(log.stdout.splitlines())
        yield from compare(plan, report)
        yield from prove(
            report,
            api,
            shares=plan.placement.shares if plan.placement else (),
            endpoints=plan.spec.endpoints,
            sparse=plan.sparse,
            tool_check=self.wish.tool_check,
            watch=watch.check,
            give_up=partial(processes.stop, head.remote, record.head_run),
        )
        path_taken = f" ({report.msa_path} path)" if plan.sparse and report.msa_path else ""
        record = replace(record, ready=True, sparse=record.sparse + path_taken)
        self.store.save(record)
        return record

    def _plan(
        self,
        record: ClusterRecord,
        head: Machine,
        engine: Engine,
        path: Path,
        model: ModelFacts,
        template: ChosenTemplate,
    ) -> Plan:
        devices = worker_devices([self._memories[worker.name] for worker in record.workers])
        # Workers on this machine already offer its GPUs; their memory must not count twice.
        if not any(worker.target == "local" for worker in record.workers):
            listing = self.seams.local.run(list_devices_command(engine), timeout=_SHORT)
            devices += head_devices(listing.stdout, unified=head.facts.unified)
        endpoints = [worker.endpoint for worker in record.workers]
        return make_plan(
            replace(self.wish, template=template.file),
            model,
            PurePosixPath(path),
            devices=devices,
            endpoints=endpoints,
            head=head_cpu(head.facts),
        )

    def _undo(self, cluster: str, cause: BaseException) -> None:
        """Leave nothing running; what stands in the way is told beside the first error."""
        try:
            record = self.store.load()
            if record is not None and record.id == cluster:
                drain(take_down(self.seams, self.store, record))
        except GgufClusterError as error:
            # The record stays, so that `down` can finish.
            cause.add_note(f"not everything could be ended: {error}; run `ggufcluster down` later")


def list_devices_command(engine: Engine) -> Command:
    """Build the command that lists the head's own devices."""
    words = (str(engine.program("llama-server")), "--list-devices")
    return Command(words, env=PROGRAM_VARIABLES)


def _with_plan(
    record: ClusterRecord, plan: Plan, model: ModelFacts, template: ChosenTemplate
) -> ClusterRecord:
    shares = plan.placement.shares if plan.placement else ()
    return replace(
        record,
        shares=tuple(
            ShareRecord(s.device.name, s.device.host, s.first, s.layers, s.bytes) for s in shares
        ),
        context=plan.spec.context,
        parallel=plan.spec.parallel,
        sparse=_sparse_attention(plan, model),
        template=template.label,
    )


def _sparse_attention(plan: Plan, model: ModelFacts) -> str:
    if not family_of(model.architecture).sparse:
        return "not in this model"
    if not model.has_indexer:
        return "off: the model has no indexer"
    return "on" if plan.sparse else "off"


def _expected(record: ClusterRecord, plan: Plan) -> dict[str, int]:
    """Return the bytes that will travel to each worker: the KV cache is made where it stays."""
    expected = {worker.name: 0 for worker in record.workers}
    for share in plan.placement.shares if plan.placement else ():
        if share.device.host in expected:
            expected[share.device.host] += share.weights
    return expected
