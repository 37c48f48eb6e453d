"""A llama-server of this machine that lives as long as a `with` block, for checks with toys."""

from __future__ import annotations

import contextlib
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.adapters.files import read_chunks
from ggufcluster.core.command import Command, command
from ggufcluster.core.engine import PROGRAM_VARIABLES
from ggufcluster.core.launch import root_url
from ggufcluster.core.server_log import telling_line
from ggufcluster.errors import HeadStartError, RemoteCommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ggufcluster.adapters.http import StreamingApi
    from ggufcluster.adapters.remote import Remote
    from ggufcluster.core.engine import Engine

_HOST = "127.0.0.1"
_SHORT = 10.0
_START_SECONDS = 120.0
_POLL_SECONDS = 0.05
# Names the server's pid, and ends it once the process that wanted it is gone, however it went.
_SCRIPT = """
log=$1 owner=$2; shift 2
"$@" >"$log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null' TERM INT HUP
echo $server
while kill -0 "$owner" 2>/dev/null && kill -0 $server 2>/dev/null; do sleep 0.5; done
kill $server 2>/dev/null
wait $server
"""
_QUIET = "--no-ui --jinja --fit off --cache-ram 0 --parallel 1 --no-kv-unified --flash-attn on"


@dataclass(frozen=True, slots=True)
class ScratchWorld:
    """What a scratch server needs of the outside.

    Attributes:
        local: This machine.
        engine: The engine whose llama-server runs.
        open_api: Opens the API of a llama-server by root URL.
        free_port: Finds a port of the loopback interface.
        clock: Monotonic seconds.
        sleep: Waits that many seconds.
    """

    local: Remote
    engine: Engine
    open_api: Callable[[str], StreamingApi]
    free_port: Callable[[], int]
    clock: Callable[[], float]
    sleep: Callable[[float], None]


@contextmanager
def scratch_server(
    outside: ScratchWorld, model: Path, *, template: Path | None = None, context: int = 16384
) -> Iterator[StreamingApi]:
    """Run llama-server on the CPU until the block ends.

    Args:
        outside: What it needs of the outside.
        model: The model; the log is written beside it.
        template: Chat template file, None for the model's own.
        context: Tokens of its one slot.

    Raises:
        HeadStartError: It ended while starting, or did not get ready.
    """
    port = outside.free_port()
    log = model.with_suffix(".log")
    words = [str(outside.engine.program("llama-server")), "--model", str(model)]
    words += ["--host", _HOST, "--port", str(port), "--ctx-size", str(context), *_QUIET.split()]
    words += ["--device", "none", "--threads", "1"]
    words += ["--chat-template-file", str(template)] if template else []
    call = ("sh", "-c", _SCRIPT, "sh", str(log), str(os.getpid()), *words)
    process = outside.local.stream(Command(call, env=PROGRAM_VARIABLES), quiet_timeout=None)
    try:
        pid = int(next(process))
        api = outside.open_api(root_url(_HOST, port))
        _wait_until_ready(outside, api, pid, log)
        yield api
    finally:
        process.close()  # type: ignore[attr-defined] # a generator, whose end ends the process


def _wait_until_ready(outside: ScratchWorld, api: StreamingApi, pid: int, log: Path) -> None:
    deadline = outside.clock() + _START_SECONDS
    while True:
        alive = _is_alive(outside.local, pid)
        if alive and api.health() == "ok":
            return
        if not alive or outside.clock() > deadline:
            tail = _tail(log)
            reason = telling_line(tail) if not alive else "it did not get ready"
            raise HeadStartError(reason, log=str(log), log_tail=tail[-12:])
        outside.sleep(_POLL_SECONDS)


def _is_alive(local: Remote, pid: int) -> bool:
    state = command("grep", "-q", "^State:[[:space:]]*[^ZX[:space:]]", f"/proc/{pid}/status")
    try:
        return local.run(state, timeout=_SHORT).exit_code == 0
    except RemoteCommandError:
        return False


def _tail(log: Path) -> tuple[str, ...]:
    with contextlib.suppress(OSError):
        text = b"".join(read_chunks(log)).decode(errors="replace")
        return tuple(text.splitlines()[-60:])
    return ()
