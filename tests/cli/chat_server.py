"""A server that streams what a test tells it to, in the form of llama-server."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

# Goes on without an end until the client has gone.
HANG: dict[str, Any] = {"hang": True}
TIMINGS: dict[str, Any] = {"cache_n": 10, "prompt_n": 20, "predicted_n": 12}
TIMINGS |= {"predicted_ms": 1000, "predicted_per_second": 12}


def delta(**fields: Any) -> dict[str, Any]:
    """One event with a piece of the message."""
    return {"choices": [{"delta": fields, "finish_reason": None}]}


def text(words: str) -> dict[str, Any]:
    """A piece of the answer."""
    return delta(content=words)


def thought(words: str) -> dict[str, Any]:
    """A piece of the reasoning."""
    return delta(reasoning_content=words)


def call(name: str, arguments: str, index: int = 0) -> dict[str, Any]:
    """A whole call."""
    function = {"name": name, "arguments": arguments}
    return delta(tool_calls=[{"index": index, "id": f"c{index}", "function": function}])


def end(reason: str = "stop", **more: Any) -> dict[str, Any]:
    """The last event."""
    return {"choices": [{"delta": {}, "finish_reason": reason}], "timings": TIMINGS, **more}


class ChatServer(ThreadingHTTPServer):
    """Answers one script after the other.

    Attributes:
        scripts: The events of each answer; an int is a refusal with that status.
        asked: The requests that came.
        gone: Set once a client has left in the middle of an answer.
        vision: Whether it sees images.
        keys: The authorization of each request.
    """

    daemon_threads = True

    def __init__(self, *scripts: list[dict[str, Any]] | int, vision: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scripts = list(scripts)
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.gone = threading.Event()
        self.vision = vision

    @property
    def root(self) -> str:
        """Root URL."""
        return f"http://127.0.0.1:{self.server_port}"

    def said(self, number: int = -1) -> list[tuple[str, Any]]:
        """Return role and content of each message of a request."""
        return [(m["role"], m.get("content")) for m in self.asked[number]["messages"]]


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_GET(self) -> None:
        """Tell the properties."""
        settings = {"n_ctx": 1000}
        body = {"default_generation_settings": settings, "modalities": {"vision": self._vision}}
        self._json(200, body)

    def do_POST(self) -> None:
        """Answer with the next script."""
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers.get("Authorization"))
        script = self.server.scripts.pop(0)
        if isinstance(script, int):
            self._json(script, {"error": {"message": "no luck today"}})
            return
        self.send_response(200)
        self.end_headers()
        try:
            self._stream(script)
        except OSError:
            self.server.gone.set()

    @property
    def _vision(self) -> bool:
        return self.server.vision

    def _stream(self, script: list[dict[str, Any]]) -> None:
        for event in script:
            while event is HANG:
                self.wfile.write(b": still here\n\n")
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if not any(choice.get("finish_reason") for choice in script[-1].get("choices", ())):
            return
        self.wfile.write(b"data: [DONE]\n\n")

    def _json(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Be quiet."""


@contextmanager
def serving(*scripts: list[dict[str, Any]] | int, vision: bool = False) -> Iterator[ChatServer]:
    """Run a server with these scripts."""
    with ChatServer(*scripts, vision=vision) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
