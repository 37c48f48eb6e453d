"""From a wish to a proven cluster, or to nothing at all."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.adapters.remote import CommandResult
from ggufcluster.core.build_id import Backend, BuildOptions
from ggufcluster.core.engine import PROGRAM_VARIABLES, Engine
from ggufcluster.core.ggml_types import TensorType
from ggufcluster.core.gguf_write import GgufModel, Tensor
from ggufcluster.core.machine import Machine
from ggufcluster.core.units import GIB, MIB
from ggufcluster.core.wish import Wish
from ggufcluster.errors import (
    BuildError,
    ClusterBusyError,
    ConfigError,
    GgufClusterError,
    HeadStartError,
    HostUnreachableError,
    LoadStalledError,
    ModelMissingError,
    PlacementError,
    PortTakenError,
    ProofError,
    RemoteCommandError,
    TemplateError,
    UnsupportedTensorError,
    WorkerAddressError,
    WorkerBusyError,
    WorkerFingerprintError,
    WorkerNotReadyError,
)
from ggufcluster.workflows.events import Note, Warned, drain
from ggufcluster.workflows.store import Store
from ggufcluster.workflows.up import Engines, Up
from tests.workflows.fakes import FINGERPRINT, FakeApi, Process, World, collect, facts, run_folder
from tests.workflows.tiny_model import tiny, write_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from ggufcluster.core.record import ClusterRecord
    from ggufcluster.workflows.events import Event, Workflow

FIRST, SECOND = "10.20.20.2", "10.20.20.3"


@dataclass
class Case:
    """One `up` in a world of its own.

    Attributes:
        world: Hosts, API and clock.
        store: Where the record is kept.
        wish: What is asked for.
        built: Hosts for which an engine was asked for, in order.
        build_errors: What getting an engine raises, by host.
    """

    world: World
    store: Store
    wish: Wish
    built: list[str] = field(default_factory=list)
    build_errors: dict[str, GgufClusterError] = field(default_factory=dict)

    def up(self) -> Workflow[ClusterRecord]:
        """Begin an `up`."""
        engines = Engines(
            on_head=lambda: self._engine("head"),
            on_worker=lambda remote, _engine: self._engine(remote.name),
        )
        return Up(self.world.seams(), engines, self.store, self.wish).run()

    def fails(self, kind: type[BaseException]) -> BaseException:
        """Run it, check that it fails so and leaves nothing behind, and return the error."""
        with pytest.raises(kind) as caught:
            drain(self.up())
        assert self.world.alive() == []
        assert self.store.load() is None
        return caught.value

    def starts(self) -> int:
        """Count the processes that were started anywhere."""
        return sum(host.count("setsid sh -c") for host in self.world.everywhere())

    def head(self) -> Process:
        """Return the llama-server that was started last."""
        return self.world.head.started("llama-server")[-1]

    def _engine(self, host: str) -> Workflow[Engine]:
        self.built.append(host)
        yield Note(f"engine for {host}")
        if error := self.build_errors.get(host):
            raise error
        return Engine(
            folder=PurePosixPath("/e"),
            build_id="b",
            fingerprint=FINGERPRINT,
            options=BuildOptions(Backend.CPU),
            machine=Machine("x86_64", "glibc 2.36"),
            size=1,
        )


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """Give a case that succeeds: two far workers and a tiny model."""
    model = write_model(tmp_path / "m.gguf", layers=4)
    world = World(tmp_path)
    return Case(world, Store(world.paths), Wish(workers=(FIRST, f"me@{SECOND}"), model=str(model)))


def notes(events: list[Event]) -> list[str]:
    """Return the texts of notes and warnings."""
    return [event.text for event in events if isinstance(event, Note | Warned)]


def test_a_cluster_comes_up(case: Case) -> None:
    """Workers and head run, and the record says what runs where, how and that it is proven."""
    events, record = collect(case.up())
    assert case.store.load() == record
    assert record.ready
    assert [worker.endpoint for worker in record.workers] == [f"{FIRST}:50052", f"{SECOND}:50052"]
    assert [worker.target for worker in record.workers] == [FIRST, f"me@{SECOND}"]
    assert [(s.device, s.host, s.first, s.layers) for s in record.shares] == [
        ("RPC0", FIRST, 0, 2),
        ("RPC1", SECOND, 2, 2),
    ]
    assert (record.model, record.context, record.root) == ("Tiny", 8192, "http://127.0.0.1:8080")
    assert record.sparse == "not in this model"
    assert record.workers[0].rate == 2.5e9
    assert case.built == ["head", f"me@{FIRST}", f"me@{SECOND}"]
    assert len(case.world.alive()) == 3
    assert case.head().option("--rpc") == [f"{FIRST}:50052", f"{SECOND}:50052"]
    assert any("layers 0 to 1" in text for text in notes(events))


def test_every_program_gets_the_engines_variables(case: Case) -> None:
    """Workers, head and the list of its devices have what all programs of an engine need."""
    collect(case.up())
    started = [one for host in case.world.everywhere() for one in host.processes.values()]
    assert len(started) == 3
    assert all(one.variables == PROGRAM_VARIABLES for one in started)
    (listing,) = (one for one in case.world.head.commands if "--list-devices" in one.shown())
    assert listing.env == PROGRAM_VARIABLES


def test_local_workers_need_no_copies_and_no_link(case: Case) -> None:
    """Workers on this machine use the head's engine and get ports of their own."""
    case.wish = replace(case.wish, workers=("local:2",))
    taken: list[str] = []

    def listening(_command: object) -> CommandResult:
        ports = [process.option("--port")[0] for process in case.world.head.started("rpc-server")]
        taken[:] = [f"0100007F:{int(port):04X}" for port in ports]
        text = facts("this machine", changes={"listening": "\n".join(taken)})
        return CommandResult(0, text, "")

    case.world.head.on("say name", listening)
    _, record = collect(case.up())
    assert [worker.endpoint for worker in record.workers] == ["127.0.0.1:50052", "127.0.0.1:50053"]
    assert [worker.name for worker in record.workers] == ["local-1", "local-2"]
    assert record.workers[0].rate == 0.0
    assert case.built == ["head"]
    assert case.world.head.count("--list-devices") == 0


def test_the_heads_own_gpus_come_last(case: Case) -> None:
    """After the workers' devices the pipeline goes on with the GPUs of the head."""
    case.world.head.listing = "  CUDA0: NVIDIA GB10 (122880 MiB, 102400 MiB free)\n"
    _, record = collect(case.up())
    assert [(share.device, share.host) for share in record.shares][-1] == ("CUDA0", "head")
    assert case.head().option("--device") == ["RPC0", "RPC1", "CUDA0"]


def test_a_second_up_changes_nothing(case: Case) -> None:
    """Asked for the same again, it says that the cluster is up, and starts and builds nothing."""
    _, first = collect(case.up())
    case.built.clear()
    events, second = collect(case.up())
    assert second == first
    assert notes(events) == ["the cluster is already up"]
    assert case.built == []
    assert case.starts() == 3


def test_a_passing_difference_is_no_other_cluster(case: Case) -> None:
    """Another time limit does not make it another cluster."""
    drain(case.up())
    case.wish = replace(case.wish, stall_seconds=5.0)
    assert notes(collect(case.up())[0]) == ["the cluster is already up"]


def test_another_wish_does_not_end_what_runs(case: Case) -> None:
    """A healthy cluster of another shape stays, and the error says in what they differ."""
    drain(case.up())
    case.wish = replace(case.wish, context=4096)
    with pytest.raises(ClusterBusyError, match="context unset instead of 4096"):
        drain(case.up())
    assert len(case.world.alive()) == 3
    assert case.store.load() is not None


def test_an_unhealthy_cluster_is_replaced(case: Case) -> None:
    """When a part of it is dead, the rest is ended first and all of it started anew."""
    _, first = collect(case.up())
    case.head().life = "dead"
    case.world.api.healths = ["ok"]
    events, second = collect(case.up())
    assert notes(events)[0] == "an earlier cluster is not healthy: it is taken down first"
    assert second.id != first.id
    assert case.starts() == 6
    assert len(case.world.alive()) == 3


def test_only_one_up_at_a_time(case: Case) -> None:
    """While another command is at work, nothing is touched."""
    with case.store.writer(), pytest.raises(ClusterBusyError):
        drain(case.up())
    assert all(host.commands == [] for host in case.world.everywhere())


def test_stale_processes_make_room(case: Case) -> None:
    """What an earlier start of this head left on a worker is ended before anything starts."""
    drain(case.up())
    case.store.forget()
    events, _ = collect(case.up())
    assert sum("left by an earlier run" in text for text in notes(events)) == 3
    assert len(case.world.alive()) == 3


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"model": "/nowhere/m.gguf"}, ModelMissingError, "no such file"),
        ({"model": None}, ModelMissingError, "no model was named"),
        ({"template": Path("/nowhere/t.jinja")}, TemplateError, "cannot be read"),
        ({"api_key_file": Path("/nowhere/keys")}, ConfigError, "cannot be read"),
        ({"extra": ("--rpc", "x")}, ConfigError, "decided by ggufcluster"),
        ({"extra": ("local",)}, ConfigError, "is no option"),
        ({"workers": ("local:5",)}, ConfigError, "5 devices for the 4 layers"),
        ({"port": 22}, PortTakenError, "127.0.0.1:22"),
        ({"host": "10.9.9.9"}, ConfigError, "cannot listen on 10.9.9.9:8080: Cannot assign"),
        ({"workers": (FIRST, FIRST)}, WorkerAddressError, "same machine"),
        ({"workers": ("a b",)}, WorkerAddressError, "spaces"),
        ({"workers": (FIRST, "10.20.20.9")}, HostUnreachableError, "10.20.20.9"),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_built(
    case: Case, change: dict[str, Any], kind: type[GgufClusterError], words: str
) -> None:
    """Whatever can be known beforehand is told before a build, and nothing is started."""
    case.world.unlistenable = {
        "127.0.0.1:22": OSError(errno.EADDRINUSE, "in use"),
        "10.9.9.9:8080": OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address"),
    }
    case.wish = replace(case.wish, **change)
    assert words in str(case.fails(kind))
    assert case.built == []
    assert case.starts() == 0


def test_a_template_that_does_not_render_is_refused(case: Case, tmp_path: Path) -> None:
    """The embedded template is judged, and one that is given in its place instead of it."""
    case.wish = replace(
        case.wish, model=str(write_model(tmp_path / "t.gguf", template="{{ 1/0 }}"))
    )
    assert "t.gguf" in str(case.fails(TemplateError))
    empty = tmp_path / "empty.jinja"
    empty.write_text("\n", encoding="utf-8")
    case.wish = replace(case.wish, template=empty)
    assert "empty.jinja: is empty" in str(case.fails(TemplateError))
    good = tmp_path / "good.jinja"
    good.write_text("{{ messages[0].content }}", encoding="utf-8")
    case.wish = replace(case.wish, template=good)
    _, record = collect(case.up())
    assert record.template == f"generic, {good}"


def test_a_model_that_cannot_run_is_refused_before_anything_is_started(
    case: Case, tmp_path: Path
) -> None:
    """What `inspect` refuses, `up` refuses: no engine is built, no worker started."""
    odd = Tensor("token_embd.weight", (64, 2), TensorType.F64, bytes(1024))
    path = tmp_path / "odd.gguf"
    path.write_bytes(GgufModel(tiny().metadata, [odd, *tiny().tensors[1:]]).to_bytes())
    case.wish = replace(case.wish, model=str(path))
    assert "odd.gguf: tensor 'token_embd.weight' is of type F64" in str(
        case.fails(UnsupportedTensorError)
    )
    assert case.built == []
    assert case.starts() == 0


def test_what_should_be_known_of_a_model_is_told(case: Case, tmp_path: Path) -> None:
    """The warnings of `inspect` stand among those of `up`."""
    path = write_model(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes() + bytes(1000))
    assert "m.gguf: 1,000 bytes behind the last tensor belong to nothing" in notes(
        collect(case.up())[0]
    )


def test_two_names_of_one_machine_are_refused(case: Case) -> None:
    """A machine reached by two names has one address, and is no two workers."""
    case.world.hosts[SECOND].peer_address = FIRST
    assert "is the same machine as 10.20.20.2" in str(case.fails(WorkerAddressError))


def test_a_worker_of_another_head_is_no_worker_of_ours(case: Case) -> None:
    """When somebody else's worker runs on a host, nothing is started, and theirs goes on."""
    host = case.world.hosts[SECOND]
    theirs = run_folder(host.home, "w", cluster="theirs")
    host.processes[theirs] = Process(1, "other:/s you@other", ["x"])
    with pytest.raises(WorkerBusyError, match="you@other"):
        drain(case.up())
    assert case.world.alive() == [theirs]
    assert case.starts() == 0
    assert case.store.load() is None


def test_the_page_cache_is_freed_where_that_is_allowed(case: Case) -> None:
    """Asked for it, each node is freed if it can be, and named if it cannot."""
    case.world.hosts[FIRST].facts = facts(FIRST, changes={"privilege": "root"})
    case.world.hosts[FIRST].on("drop_caches", "")
    case.wish = replace(case.wish, drop_caches=True)
    texts = notes(collect(case.up())[0])
    assert f"me@{FIRST}: page cache freed" in texts
    assert f"me@{SECOND}: may not free the page cache without a password" in texts


def fail_start(case: Case, host: str) -> None:
    """Let starting a process fail on a host."""
    case.world.hosts[host].on("setsid sh -c", CommandResult(1, "", "disk full"))


def lose_head(case: Case) -> None:
    """Let llama-server end as soon as it has been started."""
    case.world.api.healths = ["down"]

    def end() -> None:
        case.head().life = "dead"

    case.world.clock.naps = [end]


def lose_worker(case: Case) -> None:
    """Let the second worker end while the model is loaded."""
    case.world.api.healths = ["loading"]

    def end() -> None:
        case.world.clock.time += 10
        for process in case.world.hosts[SECOND].processes.values():
            process.life = "dead"

    case.world.clock.naps = [end]


def misplace(case: Case) -> None:
    """Let llama-server put every layer on one device."""
    case.world.head.on(re.compile(r"^cat "), "load_tensors: layer   0 assigned to device RPC1\n")


def interrupt(case: Case) -> None:
    """Press Ctrl-C while the model is loaded."""

    def press() -> None:
        raise KeyboardInterrupt

    case.world.api.healths = ["loading"]
    case.world.clock.naps = [press]


def answer_text(case: Case) -> None:
    """Let the model answer with a text instead of a tool call."""
    answer = {"choices": [{"message": {"content": "Sunny."}}]}
    case.world.api = FakeApi(answers={"/v1/chat/completions": answer})


def stall(case: Case) -> None:
    """Let nothing move."""
    case.world.api.healths = ["loading"]


def shrink(case: Case) -> None:
    """Leave no memory on a worker."""
    case.world.memory[f"{SECOND}:50052"] = (GIB, 120 * GIB)


def fail_build(case: Case) -> None:
    """Let the build on a worker fail."""
    case.build_errors[f"me@{SECOND}"] = BuildError("compiling", host="x", log="/l", excerpt=())


def trouble(what: str, error: Exception) -> Callable[[Case], None]:
    """Let probing or timing the second worker fail."""

    def prepare(case: Case) -> None:
        case.world.trouble[f"{what} {SECOND}:50052"] = [error] * 1000

    return prepare


@pytest.mark.parametrize(
    ("prepare", "kind"),
    [
        (fail_build, BuildError),
        (lambda case: fail_start(case, SECOND), RemoteCommandError),
        (trouble("probe", WorkerNotReadyError("x", reason="refused")), WorkerNotReadyError),
        (
            trouble("probe", WorkerFingerprintError("x", theirs="a", ours="b")),
            WorkerFingerprintError,
        ),
        (trouble("measure", WorkerNotReadyError("x", reason="closed")), WorkerNotReadyError),
        (shrink, PlacementError),
        (lose_head, HeadStartError),
        (lose_worker, WorkerNotReadyError),
        (stall, LoadStalledError),
        (misplace, ProofError),
        (answer_text, ProofError),
        (interrupt, KeyboardInterrupt),
    ],
    ids=[
        *("build", "start", "not ready", "fingerprint", "link", "no room", "head ends"),
        *("worker ends", "stall", "elsewhere", "no tool call", "ctrl-c"),
    ],
)
def test_whatever_fails_nothing_is_left_running(
    case: Case, prepare: Callable[[Case], None], kind: type[BaseException]
) -> None:
    """After the first worker has been started, each failure ends it all and forgets the record."""
    prepare(case)
    case.fails(kind)
    assert case.world.hosts[FIRST].count("setsid sh -c") == 1
    assert len(case.world.hosts[FIRST].files) == 1


def test_the_next_up_works_after_a_failed_one(case: Case) -> None:
    """A failure leaves nothing that would stand in the way."""
    interrupt(case)
    case.fails(KeyboardInterrupt)
    case.world.api.healths = ["ok"]
    assert collect(case.up())[1].ready


def test_a_caller_that_stops_listening_ends_it_all(case: Case) -> None:
    """Closing the workflow in the middle, as an interrupt between events does, undoes it too."""
    workflow = case.up()
    while not case.world.head.started("llama-server"):
        next(workflow)
    assert len(case.world.alive()) == 3
    workflow.close()
    assert case.world.alive() == []
    assert case.store.load() is None


def test_what_cannot_be_undone_stays_on_record(case: Case) -> None:
    """If a host is lost meanwhile, the first error is told and the record lets `down` finish."""

    def cut() -> None:
        case.world.hosts[SECOND].reachable = False
        raise KeyboardInterrupt

    case.world.api.healths = ["loading"]
    case.world.clock.naps = [cut]
    with pytest.raises(KeyboardInterrupt) as caught:
        drain(case.up())
    assert "cannot reach" in caught.value.__notes__[0]
    assert "ggufcluster down" in caught.value.__notes__[0]
    record = case.store.load()
    assert record is not None
    assert not record.ready
    assert [run.partition("/run/")[2] for run in case.world.alive()] == [f"{record.id}/{SECOND}"]


def test_the_record_is_written_before_each_start(case: Case) -> None:
    """Were the head to lose power at any start, the record would name what was started."""
    seen: list[bool] = []

    def watch(host: Any) -> None:
        start = host._start

        def note(command: Any) -> CommandResult:
            record = case.store.load()
            runs = [record.head_run, *(w.run for w in record.workers)] if record else []
            seen.append(command.plain_argv()[4] in runs)
            return start(command)  # type: ignore[no-any-return]

        host.on("setsid sh -c", note)

    for host in case.world.everywhere():
        watch(host)
    drain(case.up())
    assert seen == [True] * 3


def test_the_plan_follows_what_workers_report(case: Case) -> None:
    """The split follows the memory that running workers report, not what hosts seemed to have."""
    case.world.memory[f"{FIRST}:50052"] = (400 * GIB, 512 * GIB)
    case.wish = replace(case.wish, context=256)
    _, record = collect(case.up())
    assert [share.layers for share in record.shares] == [3, 1]
    assert record.shares[0].bytes < MIB


def test_a_context_that_is_cut_is_said_aloud(case: Case) -> None:
    """A model gets no more context than it was made for, and not in silence."""
    case.wish = replace(case.wish, context=10**6)
    texts = notes(collect(case.up())[0])
    assert "context 8,192 instead of 1,000,000: Tiny was made for no more" in texts


def test_sparse_attention_is_required_of_a_sparse_model(case: Case, tmp_path: Path) -> None:
    """A MiniMax-M3 with its indexer whose server runs dense is not accepted."""
    path = write_model(tmp_path / "s.gguf", architecture="minimax-m3", indexer=True)
    case.wish = replace(case.wish, model=str(path))
    assert "sparse attention is off" in str(case.fails(ProofError))
