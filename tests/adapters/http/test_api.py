"""Talking to llama-server: a small HTTP server stands in for it."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.adapters.http import HttpApi
from ggufcluster.core.secret import Secret
from ggufcluster.errors import HeadError

if TYPE_CHECKING:
    from collections.abc import Iterator


class Server(ThreadingHTTPServer):
    """Answers every request alike, or never, and keeps what it got."""

    def __init__(self, status: int, body: bytes, *, silent: bool) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.body = body
        self.answer = threading.Event()
        if not silent:
            self.answer.set()
        self.seen: list[tuple[str, str, Any, str | None]] = []

    @property
    def root(self) -> str:
        """Root URL."""
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        """Answer a question."""
        self._answer(None)

    def do_POST(self) -> None:
        """Answer a question with a body."""
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        key = self.headers.get("Authorization")
        self.server.seen.append((self.command, self.path, body, key))
        self.server.answer.wait()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Be quiet."""


@contextmanager
def serving(status: int = 200, body: Any = None, *, silent: bool = False) -> Iterator[Server]:
    """Run a server that answers so."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with Server(status, data, silent=silent) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.answer.set()
            server.shutdown()
            thread.join()


@contextmanager
def calling(server: Server, key: Secret | None = None) -> Iterator[HttpApi]:
    """Open an API of the server and close it again."""
    api = HttpApi(server.root, key=key)
    try:
        yield api
    finally:
        api.close()


@pytest.fixture(autouse=True)
def _a_proxy_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("status", "health"), [(200, "ok"), (503, "loading"), (500, "down"), (404, "down")]
)
def test_health_follows_the_status(status: int, health: str) -> None:
    """Ready, loading and everything else are told apart, past any proxy of the environment."""
    with serving(status, {"status": "x"}) as server, calling(server) as api:
        assert api.health() == health


def test_nobody_there_is_down() -> None:
    """A refused connection is no error for health, and one with the address for the rest."""
    with serving() as server:
        pass
    with calling(server) as api:
        assert api.health() == "down"
        with pytest.raises(HeadError, match=f"^{server.root}/props: Connection refused$"):
            api.get("/props")


def test_json_comes_and_goes() -> None:
    """What is sent arrives as JSON, with the key, and the answer comes back parsed."""
    with serving(200, {"n": [1]}) as server, calling(server, Secret("sesame")) as api:
        assert api.get("/props") == {"n": [1]}
        assert api.post("/v1/x", {"a": "ü"}, timeout=60) == {"n": [1]}
    assert server.seen == [
        ("GET", "/props", None, "Bearer sesame"),
        ("POST", "/v1/x", {"a": "ü"}, "Bearer sesame"),
    ]


def test_without_a_key_none_is_sent() -> None:
    """No key, no header."""
    with serving(200, {}) as server, calling(server) as api:
        api.get("/props")
    assert server.seen[0][3] is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "no such tool"}}, "answered 400: no such tool"),
        ({"error": "odd"}, 'answered 400: {"error": "odd"}'),
        ([1], "answered 400: [1]"),
        (b"<html>" + b"x" * 1000, "answered 400: <html>xxx"),
    ],
)
def test_an_error_is_told_in_the_servers_words(body: Any, words: str) -> None:
    """The message of an error is shown, whatever form it has, and never a long page."""
    with (
        serving(400, body) as server,
        calling(server) as api,
        pytest.raises(HeadError) as caught,
    ):
        api.get("/slots")
    assert words in str(caught.value)
    assert "/slots" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_answer_that_is_no_json_is_an_error() -> None:
    """Another kind of server on that port is noticed."""
    with (
        serving(200, b"hello") as server,
        calling(server) as api,
        pytest.raises(HeadError, match="/props"),
    ):
        api.get("/props")


def test_no_answer_in_time_is_an_error() -> None:
    """The timeout of a request is kept and told in words."""
    with (
        serving(silent=True) as server,
        calling(server) as api,
        pytest.raises(HeadError, match="gave no answer in time"),
    ):
        api.post("/v1/x", {}, timeout=0.1)


def test_the_key_is_in_no_message() -> None:
    """An error never repeats the key."""
    with (
        serving(401, {"error": {"message": "bad key"}}) as server,
        calling(server, Secret("sesame")) as api,
        pytest.raises(HeadError) as caught,
    ):
        api.get("/props")
    assert "sesame" not in repr(caught.value)


def streamed(body: bytes, *, status: int = 200) -> list[Any]:
    """Ask a server that answers with this body for a stream and return the events."""
    with serving(status, body) as server, calling(server) as api:
        return list(api.stream("/v1/x", {"stream": True}, timeout=60.0))


def test_a_stream_yields_each_event() -> None:
    """Events come as JSON; their names, comments and the end mark are no events."""
    body = b': ping\n\nevent: a\ndata: {"n": 1}\n\ndata:{"n": 2}\n\ndata: [DONE]\n\n'
    assert streamed(body) == [{"n": 1}, {"n": 2}]


def test_a_stream_that_breaks_off_is_an_error() -> None:
    """An error inside a stream, a refusal and garbage are told with the server's words."""
    with pytest.raises(HeadError, match="parser gave up"):
        streamed(b'data: {"n": 1}\n\ndata: {"error": {"message": "parser gave up"}}\n\n')
    with pytest.raises(HeadError, match="500: no luck"):
        streamed(b'{"error": {"message": "no luck"}}', status=500)
    with pytest.raises(HeadError):
        streamed(b"data: {broken\n\n")
