"""The engine's shared libraries inside this Python process; the only importer of llama_cpp.

What would end a program must not end the interpreter. The engine ends in two ways: by the
overlay's ``fail`` (a worker that is lost or refuses) and by ``ggml_abort``. Both are caught here,
on whatever thread they come; that thread can neither return nor be unwound, so it is parked for
good, and whoever waits for it is told by `Failure`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import os
import re
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggufcluster.adapters.interpose import redirect
from ggufcluster.errors import EngineMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LOG = logging.getLogger("ggufcluster.engine")
_LOG.addHandler(logging.NullHandler())
_LEVELS = {1: logging.INFO, 2: logging.WARNING, 3: logging.ERROR, 4: logging.DEBUG}
_CONTINUES = 5
# Threads of ours on which the engine runs; every other one that fails is the engine's own.
THREAD_NAME = "engine of"
_PLACE = "LLAMA_CPP_LIB_PATH"
_FAIL = "_ZN11ggufcluster4failEiPKcz"
_FINGERPRINT = "_ZN11ggufcluster11fingerprintEv"
_FORMAT = re.compile(r"%[sd]")

_LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_ABORT_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
# ``fail`` is variadic; on x86-64 and arm64 its first arguments travel as named ones do.
_FAIL_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, *(ctypes.c_void_p,) * 4)


@dataclass(frozen=True, slots=True)
class Failure:
    """The engine could not go on.

    Attributes:
        message: Its own words.
        thread: `threading.get_ident` of the thread that is parked now.
        lost_worker: Whether it was about a worker, which the message then names.
    """

    message: str
    thread: int
    lost_worker: bool


class EngineLibrary:
    """The loaded engine; there is one for each process.

    Attributes:
        folder: Folder of its libraries.
        llama_cpp: The imported package, bound to them.
        stuck: Why no further worker can be connected to in this process; empty if one can. The
            engine connects under a lock, which a thread that is parked then never releases.
    """

    def __init__(self, folder: Path, llama_cpp: Any) -> None:
        self.folder = folder
        self.llama_cpp = llama_cpp
        self._base = ctypes.CDLL(str(folder / "libggml-base.so"))
        self._all = ctypes.CDLL(str(folder / "libggml.so"))
        self._rpc = ctypes.CDLL(str(folder / "libggml-rpc.so"))
        self._watchers: dict[int, Callable[[Failure], bool]] = {}
        self._recordings: list[list[str]] = []
        self._lock = threading.Lock()
        self.stuck = ""
        self._line: tuple[int, str] = (logging.INFO, "")
        self._declare()
        # Kept: the engine holds only their addresses.
        self._callbacks = (
            _LOG_CALLBACK(self._log),
            _ABORT_CALLBACK(self._abort),
            _FAIL_CALLBACK(self._fail),
        )
        self._install()

    @property
    def fingerprint(self) -> str:
        """Which source the libraries were built from, in their own words."""
        identity = self._base[_FINGERPRINT]
        identity.restype = ctypes.c_char_p
        return str(identity().decode())

    def rpc_devices(self, endpoint: str) -> list[int]:
        """Connect to a worker and return the handles of its devices, in its order."""
        server = self._rpc.ggml_backend_rpc_add_server(endpoint.encode())
        count = self._base.ggml_backend_reg_dev_count(server) if server else 0
        return [self._base.ggml_backend_reg_dev_get(server, index) for index in range(count)]

    def own_device(self, name: str) -> int | None:
        """Return the handle of a device of this machine such as ``CUDA0``."""
        found: int | None = self._all.ggml_backend_dev_by_name(name.encode())
        return found

    def device_name(self, device: int) -> str:
        """Return what the engine calls a device in its log."""
        name: bytes = self._base.ggml_backend_dev_name(device)
        return name.decode()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[str]]:
        """Collect what the engine says while the block runs, line by line."""
        lines: list[str] = []
        self._recordings.append(lines)
        try:
            yield lines
        finally:
            self._recordings = [kept for kept in self._recordings if kept is not lines]

    def set_variable(self, name: str, value: str | None) -> None:
        """Set a variable that only the engine reads; `os.environ` keeps what it has."""
        libc = ctypes.CDLL(None)
        if value is None:
            libc.unsetenv(name.encode())
        else:
            libc.setenv(name.encode(), value.encode(), 1)

    def watch(self, watcher: Callable[[Failure], bool]) -> int:
        """Have every failure told to `watcher` until `unwatch`; return its number.

        It runs on a thread of the engine and says whether the failure is its own. One that is
        nobody's is told to all again, without a thread.
        """
        with self._lock:
            number = max(self._watchers, default=0) + 1
            self._watchers[number] = watcher
        return number

    def unwatch(self, number: int) -> None:
        """End what `watch` began."""
        with self._lock:
            self._watchers.pop(number, None)

    def _declare(self) -> None:
        pointer = ctypes.c_void_p
        for library, name, result, arguments in (
            (self._rpc, "ggml_backend_rpc_add_server", pointer, [ctypes.c_char_p]),
            (self._base, "ggml_backend_reg_dev_count", ctypes.c_size_t, [pointer]),
            (self._base, "ggml_backend_reg_dev_get", pointer, [pointer, ctypes.c_size_t]),
            (self._base, "ggml_backend_dev_name", ctypes.c_char_p, [pointer]),
            (self._base, "ggml_set_abort_callback", pointer, [_ABORT_CALLBACK]),
            (self._all, "ggml_backend_dev_by_name", pointer, [ctypes.c_char_p]),
        ):
            function = getattr(library, name)  # not library[name], which is a new object each time
            function.restype, function.argtypes = result, arguments

    def _install(self) -> None:
        log, abort, fail = self._callbacks
        self.llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
        self._base.ggml_set_abort_callback(abort)
        address = ctypes.cast(fail, ctypes.c_void_p).value
        assert address is not None
        if not redirect(self._rpc, _FAIL, address):
            reason = "it was built without ggufcluster's patches"
            raise EngineMismatchError(reason, library=str(self.folder / "libggml-rpc.so"))

    def _log(self, level: int, text: bytes, _data: object) -> None:
        if level != _CONTINUES:
            self._line = (_LEVELS.get(level, logging.DEBUG), "")
        level, begun = self._line
        *lines, rest = (begun + text.decode(errors="replace")).split("\n")
        for line in lines:
            _LOG.log(level, "%s", line)
            for recording in self._recordings:
                recording.append(line)
        self._line = (level, rest)

    def _abort(self, message: bytes) -> None:
        self._park(Failure(message.decode(errors="replace"), threading.get_ident(), False))

    def _fail(self, _code: int, text: bytes, *arguments: int | None) -> None:
        message = formatted(text.decode(errors="replace"), arguments)
        self._park(Failure(message.removeprefix("error: "), threading.get_ident(), True))

    def _park(self, failure: Failure) -> None:
        _LOG.error("%s", failure.message)
        if threading.current_thread().name.startswith(THREAD_NAME):
            self.stuck = failure.message
        with self._lock:
            watchers = tuple(self._watchers.values())
        told = [watcher(failure) for watcher in watchers]
        if not any(told):
            for watcher in watchers:
                watcher(Failure(failure.message, 0, failure.lost_worker))
        never = threading.Lock()
        never.acquire()
        never.acquire()


def formatted(text: str, arguments: Sequence[int | None]) -> str:
    """Fill a C format of strings and whole numbers; what is more than the arguments stays."""
    rest = list(arguments)

    def fill(match: re.Match[str]) -> str:
        if not rest:
            return match[0]
        value = rest.pop(0) or 0
        if match[0] == "%d":
            return str(ctypes.c_int(value).value)
        return ctypes.string_at(value).decode(errors="replace") if value else "(none)"

    return _FORMAT.sub(fill, text)


_loaded: list[EngineLibrary] = []
_loading = threading.Lock()


def load_engine(folder: Path, fingerprint: str) -> EngineLibrary:
    """Load the engine's libraries and bind llama_cpp to them, once for the process.

    Args:
        folder: Folder of the libraries.
        fingerprint: What they must have been built from.

    Raises:
        EngineMismatchError: They are of another source, or llama_cpp already has other libraries.
    """
    with _loading:
        if not _loaded:
            _require_unbound(folder)
            _loaded.append(EngineLibrary(folder, _import_bound_to(folder)))
        library = _loaded[0]
    path = str(folder / "libllama.so")
    if library.folder.resolve() != folder.resolve():
        raise EngineMismatchError(f"this process runs {library.folder} already", library=path)
    if library.fingerprint != fingerprint:
        reason = f"it is of source {library.fingerprint}, not {fingerprint}"
        raise EngineMismatchError(reason, library=path)
    return library


def _require_unbound(folder: Path) -> None:
    module = sys.modules.get("llama_cpp.llama_cpp")
    bound = getattr(getattr(module, "_lib", None), "_name", None)
    if module is not None and (not bound or Path(bound).parent.resolve() != folder.resolve()):
        reason = f"llama_cpp was imported before, with {bound}; use ggufcluster.Llama first"
        raise EngineMismatchError(reason, library=str(folder / "libllama.so"))


def _import_bound_to(folder: Path) -> Any:
    before = os.environ.get(_PLACE)
    os.environ[_PLACE] = str(folder)
    try:
        return importlib.import_module("llama_cpp")
    except (OSError, RuntimeError, AttributeError) as error:
        library = str(folder / "libllama.so")
        raise EngineMismatchError(f"it does not load: {error}", library=library) from error
    finally:
        os.environ.pop(_PLACE)
        if before is not None:
            os.environ[_PLACE] = before
