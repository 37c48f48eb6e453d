"""How the hub of `ggufcluster.testing.hub_server` answers single requests."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from ggufcluster.testing.bucket import Bucket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ggufcluster.testing.hub_server import Fault, HubServer, Published

_CHUNK = 1 << 18
_TRICKLE_SECONDS = 0.05
_INFO = re.compile(r"/api/models/([^/]+/[^/]+?)(?:/revision/(.+))?$")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)$")
_STORED = re.compile(r"/([^/]+/[^/]+)/([^/]+)/(.+)$")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    origin = ""
    server: Any  # with the hub beside

    @property
    def hub(self) -> HubServer:
        hub: HubServer = self.server.hub
        return hub

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self._handle()

    def do_GET(self) -> None:
        """Answer."""
        self._handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Be quiet."""

    def answer(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _handle(self) -> None:
        fault = self.hub.note(self, self.origin)
        if fault and fault.kind == "status":
            self.answer(fault.status, fault.headers)
        else:
            self.handle_path(unquote(urlsplit(self.path).path), fault)

    def handle_path(self, path: str, fault: Fault | None) -> None:
        """Answer one request."""
        raise NotImplementedError

    def send_file(self, file: Published, fault: Fault | None) -> None:
        """Send a file or the part that was asked for, with what is to go wrong."""
        kind = fault.kind if fault else ""
        size = len(file.data)
        start, end = _asked_range(self.headers.get("Range"), size)
        if kind == "whole" or "Range" not in self.headers:
            start, end = 0, size
        if start >= size and "Range" in self.headers and kind != "whole":
            self.answer(416, {"Content-Range": f"bytes */{size}"})
            return
        shift = 1 if kind == "shifted" else 0
        total = size + 1 if kind == "resized" else size
        self.send_response(200 if kind == "whole" or "Range" not in self.headers else 206)
        if kind != "whole" and "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start + shift}-{end - 1 + shift}/{total}")
        if kind == "packed":
            self.send_header("Content-Encoding", "gzip")
        if kind == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", f'"{file.sha256}"')
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(file.data[start:end], fault)

    def _send_body(self, data: memoryview, fault: Fault | None) -> None:
        if fault is None:
            self._send(data)
            return
        if fault.kind == "corrupt":
            self._send(memoryview(bytes([data[0] ^ 1]) + data[1:]))
            return
        if fault.kind == "chunked":
            self._send_chunked(data)
            return
        self._send(data[: fault.after])
        rest = data[fault.after :]
        self.close_connection = fault.kind in {"short", "reset", "stall"}
        match fault.kind:
            case "stall":
                self.hub.stopped.wait()
            case "trickle":
                self._trickle(rest)
            case "reset":
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.connection.close()
            case "short":
                pass
            case _:
                self._send(rest)

    def _send_chunked(self, data: memoryview) -> None:
        for offset in range(0, len(data), 1000):
            piece = data[offset : offset + 1000]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), bytes(piece)))
        self.wfile.write(b"0\r\n\r\n")

    def _trickle(self, data: memoryview) -> None:
        for offset in range(len(data)):
            if self.hub.stopped.is_set():
                return
            self._send(data[offset : offset + 1])
            time.sleep(_TRICKLE_SECONDS)

    def _send(self, data: memoryview) -> None:
        own = Bucket(self.hub.connection_rate)
        chunk = min(self.hub.bucket.piece(_CHUNK), own.piece(_CHUNK))
        while data and (count := self.hub.admit(min(chunk, len(data)))):
            own.take(count)
            self.hub.bucket.take(count)
            self.connection.sendall(data[:count])
            self.hub.sent_at = time.time()
            data = data[count:]


class HubHandler(_Handler):
    """Names, hashes and redirects."""

    origin = "hub"

    def handle_path(self, path: str, fault: Fault | None) -> None:
        """Answer one request."""
        path = path.removeprefix(self.hub.prefix)
        if found := _INFO.match(path):
            self._info(found[1], found[2] or "main")
        elif found := _RESOLVE.match(path):
            self._resolve(found[1], found[2], found[3], fault)
        else:
            self.answer(404, {})

    def _is_refused(self, repository: str) -> bool:
        given = self.headers.get("Authorization")
        known = given == f"Bearer {self.hub.token}"
        if not self.hub.has_repository(repository) or (
            repository in self.hub.private and not known
        ):
            self.answer(404 if given else 401, {"X-Error-Code": "RepoNotFound"})
            return True
        if given and not known:
            message = "Invalid credentials in Authorization header"
            self.answer(401, {"X-Error-Message": message})
            return True
        return False

    def _info(self, repository: str, revision: str) -> None:
        if self._is_refused(repository):
            return
        commit = self.hub.commit(repository, revision)
        if commit is None:
            self.answer(404, {"X-Error-Code": "RevisionNotFound"})
            return
        files = self.hub.files(repository, commit)
        report = {
            "id": repository,
            "sha": commit,
            "private": repository in self.hub.private,
            "gated": "manual" if repository in self.hub.gated else False,
            "siblings": [_sibling(name, file) for name, file in files.items()],
        }
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(report).encode())

    def _resolve(self, repository: str, revision: str, path: str, fault: Fault | None) -> None:
        if self._is_refused(repository):
            return
        if repository in self.hub.gated:
            given = "Authorization" in self.headers
            self.answer(403 if given else 401, {"X-Error-Code": "GatedRepo"})
            return
        commit = self.hub.commit(repository, revision)
        file = self.hub.files(repository, commit or "").get(path)
        if commit is None or file is None:
            code = "EntryNotFound" if commit else "RevisionNotFound"
            self.answer(404, {"X-Error-Code": code})
        elif self.hub.direct:
            self.send_file(file, fault)
        else:
            self.answer(302, self._redirect(repository, commit, path, file))

    def _redirect(self, repository: str, commit: str, path: str, file: Published) -> dict[str, str]:
        return {
            "Location": self.hub.address(repository, path, revision=commit),
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{file.sha256}"',
            "X-Linked-Size": str(len(file.data)),
        }


class FileHandler(_Handler):
    """The file server behind signed addresses."""

    origin = "files"

    def handle_path(self, path: str, fault: Fault | None) -> None:
        """Answer one request."""
        found = _STORED.match(path)
        file = self.hub.files(found[1], found[2]).get(found[3]) if found else None
        signed = parse_qs(urlsplit(self.path).query).get("Signature", [""])[0]
        if signed != str(self.hub.generation):
            self.answer(403, {}, b"Request has expired")
        elif file is None:
            self.answer(404, {})
        else:
            self.send_file(file, fault)


def _asked_range(text: str | None, size: int) -> tuple[int, int]:
    found = re.match(r"bytes=(\d+)-(\d+)$", text or "")
    if not found:
        return 0, size
    return int(found[1]), min(size, int(found[2]) + 1)


def _sibling(name: str, file: Published) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name, "size": len(file.data), "blobId": file.git_sha1}
    if file.lfs:
        entry["lfs"] = {"sha256": file.sha256, "size": len(file.data), "pointerSize": 130}
    return entry
