"""`llama_cpp.Llama` over RPC workers. Importing this loads the engine."""

from __future__ import annotations

import ctypes
import inspect
import threading
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from ggufcluster.adapters.chat_library import ChatLibrary
from ggufcluster.bindings.chat_handler import ChatHandler
from ggufcluster.bindings.engine_thread import EngineThread
from ggufcluster.bindings.loading import make_local_plan, prove, reason_of, wished_model
from ggufcluster.bindings.options import flags_of
from ggufcluster.bindings.resources import Resources, choose_msa, lost_ports, require_fresh
from ggufcluster.bindings.steps import Steps
from ggufcluster.bindings.threaded_llama import ENGINE, ThreadedLlama, token_text
from ggufcluster.bindings.token_texts import TokenTexts
from ggufcluster.core.worker_address import require_endpoint
from ggufcluster.errors import ChatRequestError, ConfigError, EngineFailedError
from ggufcluster.wiring import World, pretrained, settings_of, told_as_written, wish_of
from ggufcluster.workflows.choose_template import choose_template
from ggufcluster.workflows.events import Finished, Progress, Started, Workflow
from ggufcluster.workflows.machines import survey
from ggufcluster.workflows.plan_notes import describe
from ggufcluster.workflows.worker_group import WorkerGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    from ggufcluster.config import Settings
    from ggufcluster.core.plan import Plan
    from ggufcluster.workflows.choose_template import ChosenTemplate
    from ggufcluster.workflows.events import Event

llama_cpp: Any = ENGINE.library.llama_cpp
_LOOK_SECONDS = 0.2
_PARTS = 1000
# llama.cpp rounds a context up to this; llama_cpp's own arrays must not be shorter.
_CONTEXT_STEP = 256
_KV_TYPES = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0", "q4_0": "GGML_TYPE_Q4_0"}
# Our arguments by the options of `up` that they are.
_SAME = ("kv_type", "msa", "template", "template_style", "accept_new_host_keys", "allow_public")
_SETTINGS = {"model": "model_path", "ctx": "n_ctx", "ubatch": "n_ubatch"} | {n: n for n in _SAME}
# What the plan decides; each would contradict it in silence.
_OURS = frozenset(
    "n_gpu_layers split_mode main_gpu tensor_split vocab_only use_mmap use_mlock flash_attn"
    " offload_kqv op_offload embeddings".split()
)
_NATIVE = frozenset({"_stack", "_model", "_ctx"})
# Those that have another name here.
_RENAMED = {
    "rpc_servers": "workers, or endpoints if they run already",
    "n_batch": "n_ubatch",
    "type_k": "kv_type",
    "type_v": "kv_type",
}


class Llama(ThreadedLlama):
    """A model in this process whose layers lie on RPC workers.

    Workers are started, the layers are placed by the plan, and the rules that sparse attention
    needs are kept: one sequence, a KV cache of its own, flash attention. Then it is a
    `llama_cpp.Llama`. Close it, or use it as a context manager, to end the workers.

    Args:
        model_path: GGUF file, or the first shard of a set.
        workers: ``[user@]host[:ssh-port]``, ``local`` or ``local:N``; None takes the settings, and
            with none at all everything is computed here.
        endpoints: ``address:port`` of workers that run already; they are left running.
        n_ctx: Tokens of context; ``max``, or 0, takes the most that fits, None the largest usual
            one.
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
        model_path: str | PathLike[str],
        *,
        workers: Iterable[str] | None = None,
        endpoints: Iterable[str] = (),
        n_ctx: int | str | None = None,
        n_ubatch: int | None = None,
        kv_type: str | None = None,
        msa: str | None = None,
        template: str | PathLike[str] | None = None,
        template_style: str | None = None,
        accept_new_host_keys: bool | None = None,
        allow_public: bool | None = None,
        on_event: Callable[[Event], object] | None = None,
        **options: Any,
    ) -> None:
        _check_options(options)
        endpoints = tuple(map(require_endpoint, _listed(endpoints)))
        self._native: dict[str, Any] = {}
        self._arguments = {
            "model_path": str(model_path),
            "workers": None if workers is None else tuple(_listed(workers)),
            "endpoints": endpoints,
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
            {name: self._arguments[argument] for name, argument in _SETTINGS.items()}
            | {"ctx": "max" if n_ctx == 0 else n_ctx},
        )
        self._give_up = False
        self.stop_asked = threading.Event()
        self._turn, self._changes = threading.RLock(), 0
        Steps(self._start(flags, endpoints, options)).result(on_event)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NATIVE:
            self._native[name] = value  # what frees them must not hold the whole model
        super().__setattr__(name, value)

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: list[str] | None = None,
        local_dir: str | PathLike[str] | None = None,
        local_dir_use_symlinks: object = "auto",  # noqa: ARG003 - nobody heeds it any more
        cache_dir: str | PathLike[str] | None = None,
        *,
        on_event: Callable[[Event], object] | None = None,
        **options: Any,
    ) -> Self:
        """Download a model as ``ggufcluster download`` does, and load it.

        Args:
            repo_id: ``owner/name`` on the hub.
            filename: File or shell pattern; one shard stands for its set, None for the only model.
            additional_files: Further files or patterns, which are fetched to the same folder.
            local_dir: Folder for the files; None takes ``owner/name`` in `cache_dir`, or in the
                folder of models.
            local_dir_use_symlinks: Without effect, as in the `huggingface_hub` of today.
            cache_dir: Folder for models.
            on_event: Called with each event of download and start.
            options: Of `Llama`.

        Raises:
            DownloadError: Of the kind that tells what failed.
        """
        folder = local_dir or (Path(cache_dir) / repo_id if cache_dir else None)
        work = pretrained(repo_id, folder, names=(filename, *(additional_files or ())))
        return cls(Steps(work).result(on_event), on_event=on_event, **options)

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
        settings = settings_of(flags, name_of=lambda s: _SETTINGS.get(s.argument, s.argument))
        with told_as_written(settings):
            yield from self._start_with(settings, endpoints, options)

    def _start_with(
        self, settings: Settings, endpoints: tuple[str, ...], options: dict[str, Any]
    ) -> Workflow[None]:
        wish = wish_of(settings, extra=())
        require_fresh(endpoints, ENGINE.library)
        world = World(settings)
        group = WorkerGroup(
            world.seams(), world.engines(), wish, attached=endpoints, avoid=lost_ports()
        )
        try:
            head = survey(world.local)
            path, model = wished_model(wish, head)
            chosen = yield from choose_template(
                wish, model.template, path, remote=world.local, state=Path(head.paths.state)
            )
            engine = ENGINE.engine
            yield from group.start(head, engine, layers=model.layers, model=model.name)
            wish = replace(wish, template=chosen.file)
            plan = make_local_plan(wish, group, head, path, model=model, engine=engine)
            yield from describe(plan)
            msa = (plan.spec.msa, wish.index_type) if plan.spec.msa else None
            choose_msa(ENGINE.library, msa)
            self._engine = EngineThread(model.name, frozenset(group.endpoints))
        except BaseException:
            group.stop()
            world.close()
            raise
        held = Resources(world, group, self._engine, ENGINE.library, held=self._native, msa=msa)
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
        if options.get("draft_model") is not None:
            options = options | {"logits_all": True}  # llama_cpp keeps too few of them else
        work = partial(super().__init__, **options | _arguments(plan))
        with ENGINE.library.recorded() as log:
            steps = self._engine.follow(work, _LOOK_SECONDS)
            try:
                for _ in steps:
                    yield Progress(label, int(done[0] * _PARTS), _PARTS)
            except (ValueError, RuntimeError) as error:
                reason = reason_of(log, str(error))
                raise EngineFailedError(plan.spec.alias, reason=reason) from error
            finally:
                self._give_up = True
                steps.close()
            if self.lora_path and not self._lora_adapter:
                reason = f"{self.lora_path} is no adapter for it"
                raise EngineFailedError(plan.spec.alias, reason=reason_of(log, reason))
        if embedding:
            self._engine.call(partial(llama_cpp.llama_set_embeddings, self._ctx.ctx, True))
            self.context_params.embeddings = True
        self._texts = TokenTexts(partial(token_text, self._model.vocab))
        self._take_template(plan, chosen, options)
        prove(plan, log, names)
        yield Finished(label, f"{plan.spec.context:,} tokens of context")

    def _find_devices(self, plan: Plan) -> dict[str, str]:
        """Find the planned devices in the engine; return what it calls them."""
        library = ENGINE.library
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

    def _take_template(self, plan: Plan, chosen: ChosenTemplate, options: dict[str, Any]) -> None:
        if options.keys() & {"chat_format", "chat_handler"}:
            return
        source = chosen.file.read_text(encoding="utf-8") if chosen.file else ""
        library = ChatLibrary(ENGINE.library.folder)
        try:
            template = self._engine.call(partial(library.open, source, model=self._model.model))
        except ChatRequestError as error:
            reason = f"it cannot read the chat template: {error.reason}"
            raise EngineFailedError(plan.spec.alias, reason=reason) from error
        self.chat_handler = cast("Any", ChatHandler(template))


def _check_options(options: dict[str, Any]) -> None:
    known = inspect.signature(llama_cpp.Llama.__init__).parameters
    for name, value in options.items():
        if name in _OURS:
            raise ConfigError(f"{name} is decided by ggufcluster", source="Llama")
        if name in _RENAMED:
            raise ConfigError(f"it is called {_RENAMED[name]}", source=f"Llama: {name}")
        if name == "verbose" and value:
            raise ConfigError("listen to the logger ggufcluster.engine instead", source="verbose")
        if name not in known:
            raise TypeError(f"Llama() has no argument {name!r}")
        if name == "lora_path" and value and not Path(value).is_file():
            raise ConfigError(f"{value}: no such file", source=name)


def _listed(workers: Iterable[str]) -> Iterable[str]:
    return (workers,) if isinstance(workers, str) else workers


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
        "n_ctx": -(-spec.context // _CONTEXT_STEP) * _CONTEXT_STEP,
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
