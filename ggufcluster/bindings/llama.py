"""`llama_cpp.Llama` over RPC workers. Importing this loads the engine."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import sys
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

from ggufcluster.bindings.engine_thread import EngineThread
from ggufcluster.bindings.options import flags_of
from ggufcluster.bindings.process_engine import process_engine
from ggufcluster.bindings.resources import Resources, choose_msa, lost_ports, require_fresh
from ggufcluster.bindings.steps import Steps
from ggufcluster.core.devices import head_cpu, head_devices, worker_devices
from ggufcluster.core.plan import make_plan
from ggufcluster.core.server_log import parse_server_log
from ggufcluster.errors import ConfigError, EngineFailedError, ProofError
from ggufcluster.wiring import World, settings_of, wish_of
from ggufcluster.workflows.choose_template import choose_template
from ggufcluster.workflows.events import Finished, Progress, Started, Workflow
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.models import find_model, judge_model
from ggufcluster.workflows.plan_notes import describe
from ggufcluster.workflows.proof import layout_failures, sparse_failures
from ggufcluster.workflows.up import list_devices_command
from ggufcluster.workflows.worker_group import WorkerGroup

# Before llama_cpp is imported by anybody: it loads a library as it is imported.
_ENGINE = process_engine()

import llama_cpp
from llama_cpp import llama_chat_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ggufcluster.core.model import ModelFacts
    from ggufcluster.core.plan import Plan
    from ggufcluster.core.wish import Wish
    from ggufcluster.workflows.choose_template import ChosenTemplate
    from ggufcluster.workflows.events import Event
    from ggufcluster.workflows.machines import Machine

_LIST_SECONDS = 30.0
_LOOK_SECONDS = 0.2
_PARTS = 1000
_KV_TYPES = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0", "q4_0": "GGML_TYPE_Q4_0"}
# Our arguments by the options of `up` that they are.
_SAME = ("kv_type", "msa", "template", "template_style", "accept_new_host_keys", "allow_public")
_SETTINGS = {"model": "model_path", "ctx": "n_ctx", "ubatch": "n_ubatch"} | {n: n for n in _SAME}
# What the plan decides; each would contradict it in silence.
_OURS = frozenset(
    "n_gpu_layers split_mode main_gpu tensor_split vocab_only use_mmap use_mlock n_batch"
    " flash_attn offload_kqv op_offload type_k type_v rpc_servers embeddings".split()
)

# It sends the whole process' output to nowhere while a model loads; the engine is quiet as it is.
for _module in ("llama_cpp.llama", "llama_cpp._internals"):
    vars(sys.modules[_module])["suppress_stdout_stderr"] = lambda **_: contextlib.nullcontext()


class Llama(llama_cpp.Llama):
    """A model in this process whose layers lie on RPC workers.

    Workers are started, the layers are placed by the plan, and the rules that sparse attention
    needs are kept: one sequence, a KV cache of its own, flash attention. Then it is a
    `llama_cpp.Llama`. Close it, or use it as a context manager, to end the workers.

    Args:
        model_path: GGUF file, or the first shard of a set.
        workers: ``[user@]host[:ssh-port]``, ``local`` or ``local:N``; None takes the settings, and
            with none at all everything is computed here.
        endpoints: ``address:port`` of workers that run already; they are left running.
        n_ctx: Tokens of context; ``max`` takes the most that fits, None the largest usual one.
        n_ubatch: Tokens per ubatch; None takes the family's.
        kv_type: Type of the KV cache: ``f16``, ``q8_0`` or ``q4_0``; None takes the family's.
        msa: Path of sparse attention: ``auto``, ``native``, ``generic`` or ``dense``.
        template: Chat template file.
        template_style: ``auto``, ``native``, ``hybrid`` or ``own``.
        accept_new_host_keys: Whether unknown SSH host keys are added.
        allow_public: Whether a worker may listen on a public address.
        on_event: Called with each event of the start.
        options: Any other argument of `llama_cpp.Llama` that the plan does not decide.

    Raises:
        EngineMissingError: No engine is built here (when this class is imported).
        PlacementError: The model does not fit.
        WorkerError: A worker did not start, or was lost while loading.
        ConfigError: An option contradicts the plan.
        ProofError: Layers or sparse attention are not as planned.
        TypeError: There is no such option.
    """

    def __init__(
        self,
        model_path: str | PurePosixPath,
        *,
        workers: Iterable[str] | None = None,
        endpoints: Sequence[str] = (),
        n_ctx: int | str | None = None,
        n_ubatch: int | None = None,
        kv_type: str | None = None,
        msa: str | None = None,
        template: str | PurePosixPath | None = None,
        template_style: str | None = None,
        accept_new_host_keys: bool | None = None,
        allow_public: bool | None = None,
        on_event: Callable[[Event], object] | None = None,
        **options: Any,
    ) -> None:
        _check_options(options)
        self._arguments = {
            "model_path": str(model_path),
            "workers": None if workers is None else tuple(_listed(workers)),
            "endpoints": tuple(endpoints),
            "n_ctx": n_ctx,
            "n_ubatch": n_ubatch,
            "kv_type": kv_type,
            "msa": msa,
            "template": template,
            "template_style": template_style,
            "accept_new_host_keys": accept_new_host_keys,
            "allow_public": allow_public,
            **options,
        }
        flags = flags_of(
            () if endpoints and workers is None else self._arguments["workers"],
            {name: self._arguments[argument] for name, argument in _SETTINGS.items()},
        )
        self._give_up = False
        Steps(self._start(flags, tuple(endpoints), options)).result(on_event)

    @property
    def model_params(self) -> Any:
        """Parameters with which the model was loaded; the planned devices are always among them."""
        return self._model_params

    @model_params.setter
    def model_params(self, params: Any) -> None:
        self._model_params = params
        params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        params.progress_callback = self._progress_callback

    @property
    def context_params(self) -> Any:
        """Parameters of the context: one sequence in a KV cache of its own."""
        return self._context_params

    @context_params.setter
    def context_params(self, params: Any) -> None:
        params.n_seq_max, params.kv_unified = 1, False
        self._context_params = params

    def generate(self, *args: Any, **options: Any) -> Any:
        """Yield tokens; raises `WorkerLostError` if a worker is lost."""
        self._engine.require()
        return super().generate(*args, **options)

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens; raises `WorkerLostError` if a worker is lost."""
        self._engine.call(partial(super().eval, tokens))

    def sample(self, *args: Any, **options: Any) -> int:
        """Sample the next token; raises `WorkerLostError` if a worker is lost."""
        token: int = self._engine.call(partial(super().sample, *args, **options))
        return token

    def reset(self) -> None:
        """Forget the context."""
        self._engine.call(super().reset)

    def embed(
        self,
        input: str | list[str],  # noqa: A002 - the name that llama_cpp gives it
        normalize: bool = False,  # noqa: FBT001, FBT002 - likewise
        truncate: bool = True,  # noqa: FBT001, FBT002
        return_count: bool = False,  # noqa: FBT001, FBT002
    ) -> Any:
        """Embed one text or several, one at a time; needs ``embedding=True``.

        Returns:
            `n_embd` numbers for each text, or for each token of each text without pooling; with
            `return_count` also the number of tokens.
        """
        one = partial(super().embed, normalize=normalize, truncate=truncate, return_count=True)
        texts = [input] if isinstance(input, str) else input
        found = [self._engine.call(partial(one, text)) for text in texts]
        vectors: Any = [vector for vector, _count in found]
        vectors = vectors[0] if isinstance(input, str) else vectors
        return (vectors, sum(count for _, count in found)) if return_count else vectors

    def save_state(self) -> llama_cpp.LlamaState:
        """Copy the context, the KV cache of every worker included; any placement can load it."""
        return self._engine.call(super().save_state)

    def load_state(self, state: llama_cpp.LlamaState) -> None:
        """Take over a context that `save_state` copied."""
        self._engine.call(partial(super().load_state, state))

    def __getstate__(self) -> dict[str, Any]:
        return self._arguments  # a copy is a model of its own, with workers of its own

    def close(self) -> None:
        """Free the model and end its workers; a second time does nothing."""
        if "_finalizer" in vars(self):
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(
        self, flags: dict[str, object], endpoints: tuple[str, ...], options: dict[str, Any]
    ) -> Workflow[None]:
        settings = settings_of(flags)
        wish = wish_of(settings, extra=())
        require_fresh(endpoints, _ENGINE.library)
        world = World(settings)
        group = WorkerGroup(
            world.seams(), world.engines(), wish, attached=endpoints, avoid=lost_ports()
        )
        try:
            head = survey(world.local)
            path, model = _model(wish, head)
            chosen = yield from choose_template(
                wish, model.template, path, remote=world.local, state=Path(head.paths.state)
            )
            engine = _ENGINE.engine
            yield from group.start(head, engine, layers=model.layers, model=model.name)
            plan = _plan(replace(wish, template=chosen.file), group, head, path, model)
            yield from describe(plan)
            msa = (plan.spec.msa, wish.index_type) if plan.spec.msa else None
            choose_msa(_ENGINE.library, msa)
            self._engine = EngineThread(model.name, frozenset(group.endpoints))
        except BaseException:
            group.stop()
            world.close()
            raise
        held = Resources(world, group, self._engine, _ENGINE.library, held=vars(self), msa=msa)
        self._finalizer = weakref.finalize(self, held.close)
        try:
            yield from self._load(plan, chosen, options)
        except BaseException:
            self._give_up = True
            self.close()
            raise

    def _load(self, plan: Plan, chosen: ChosenTemplate, options: dict[str, Any]) -> Workflow[None]:
        label = f"Loading {plan.spec.alias}"
        yield Started(label)
        names = self._engine.call(partial(self._find_devices, plan))
        done = [0.0]
        self._progress_callback = _progress(weakref.ref(self), done)
        embedding = options.pop("embedding", False)
        work = partial(super().__init__, **options | _arguments(plan))
        with _ENGINE.library.recorded() as log:
            steps = self._engine.follow(work, _LOOK_SECONDS)
            try:
                for _ in steps:
                    yield Progress(label, int(done[0] * _PARTS), _PARTS)
            except ValueError as error:
                raise EngineFailedError(plan.spec.alias, reason=_reason(log, error)) from error
            finally:
                self._give_up = True
                steps.close()
        if embedding:
            self._engine.call(partial(llama_cpp.llama_set_embeddings, self._ctx.ctx, True))
            self.context_params.embeddings = True
        self._take_template(chosen, options)
        _prove(plan, log, names)
        yield Finished(label, f"{plan.spec.context:,} tokens of context")

    def _find_devices(self, plan: Plan) -> dict[str, str]:
        """Find the planned devices in the engine; return what it calls them."""
        library = _ENGINE.library
        remote = [one for end in plan.spec.endpoints for one in library.rpc_devices(end)]
        handles = []
        for part in plan.spec.split:
            number = part.device.removeprefix("RPC")
            far = number.isdigit() and number != part.device
            handles.append(remote[int(number)] if far else library.own_device(part.device))
        if None in handles:
            raise EngineFailedError(plan.spec.alias, reason="a planned device is not there")
        # The list ends with a null pointer; an empty one keeps every layer on the CPU.
        self._devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
        pairs = zip(plan.spec.split, handles, strict=True)
        return {part.device: library.device_name(handle) for part, handle in pairs if handle}

    def _take_template(self, chosen: ChosenTemplate, options: dict[str, Any]) -> None:
        if chosen.file is None or options.keys() & {"chat_format", "chat_handler"}:
            return
        self.chat_handler = llama_chat_format.Jinja2ChatFormatter(
            template=chosen.file.read_text(encoding="utf-8"),
            eos_token=self._model.token_get_text(self.token_eos()),
            bos_token=self._model.token_get_text(self.token_bos()),
            stop_token_ids=[self.token_eos()],
        ).to_chat_handler()


def _check_options(options: dict[str, Any]) -> None:
    known = inspect.signature(llama_cpp.Llama.__init__).parameters
    for name, value in options.items():
        if name in _OURS:
            raise ConfigError(f"{name} is decided by ggufcluster", source="Llama")
        if name == "verbose" and value:
            raise ConfigError("listen to the logger ggufcluster.engine instead", source="verbose")
        if name not in known:
            raise TypeError(f"Llama() has no argument {name!r}")


def _listed(workers: Iterable[str]) -> Iterable[str]:
    return (workers,) if isinstance(workers, str) else workers


def _model(wish: Wish, head: Machine) -> tuple[Path, ModelFacts]:
    path = find_model(wish.model, Path(head.paths.models))
    return path, judge_model(path).facts


def _plan(wish: Wish, group: WorkerGroup, head: Machine, path: Path, model: ModelFacts) -> Plan:
    devices = worker_devices(group.memories)
    # Workers on this machine already offer its GPUs; their memory must not count twice.
    if not any(memory.machine == "local" for memory in group.memories):
        listing = head.remote.run(list_devices_command(_ENGINE.engine), timeout=_LIST_SECONDS)
        devices += head_devices(listing.stdout, unified=head.facts.unified)
    return make_plan(
        wish,
        model,
        PurePosixPath(path),
        devices=devices,
        endpoints=group.endpoints,
        head=head_cpu(head.facts),
    )


def _arguments(plan: Plan) -> dict[str, Any]:
    """Return what `llama_cpp.Llama` is told; docs/design.md says why."""
    spec = plan.spec
    counts = [part.layers for part in spec.split]
    if counts:
        counts[-1] += 1  # the output head counts as a layer
    kv_type = getattr(llama_cpp, _KV_TYPES[spec.kv_type])
    return {
        "model_path": str(spec.model),
        "n_gpu_layers": -1 if counts else 0,
        "tensor_split": [float(count) for count in counts] or None,
        "use_mmap": False,
        "n_ctx": spec.context,
        "n_batch": spec.ubatch,
        "n_ubatch": spec.ubatch,
        "flash_attn": True,
        "type_k": kv_type,
        "type_v": kv_type,
        "verbose": False,
    }


def _progress(model: weakref.ref[Llama], done: list[float]) -> Any:
    """Return the callback that the engine tells how far loading is; false ends it."""

    def told(share: float, _data: object) -> bool:
        done[0] = share
        loading = model()
        return loading is not None and not loading._give_up  # noqa: SLF001 - it is Llama's own

    return llama_cpp.llama_progress_callback(told)


def _prove(plan: Plan, log: Sequence[str], names: dict[str, str]) -> None:
    """Compare what the engine said with the plan; raises `ProofError`."""
    report = parse_server_log(log)
    shares = [
        replace(share, device=replace(share.device, name=names[share.device.name]))
        for share in (plan.placement.shares if plan.placement else ())
        if share.device.name in names
    ]
    failures = layout_failures(report, shares, plan.spec.endpoints)
    failures += sparse_failures(report, wanted=plan.sparse)
    if failures:
        raise ProofError(tuple(failures))


def _reason(log: Sequence[str], error: Exception) -> str:
    told = [line for line in log if "error" in line.lower() or "failed" in line.lower()]
    return told[0].strip() if told else str(error)
