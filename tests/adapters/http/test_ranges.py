"""Byte ranges of remote files, from a server that misbehaves on demand."""

from __future__ import annotations

import io
import socket
import socketserver
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from ggufcluster.adapters.http import RangeClient, RemoteFile, open_remote, read_range
from ggufcluster.core.gguf import read_header
from ggufcluster.core.secret import Secret
from ggufcluster.errors import RangesIgnoredError, RemoteChangedError, TransferError
from ggufcluster.testing import Fault, HubServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = bytes(range(256)) * 40
REPO = "me/model"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """A hub with one file."""
    with HubServer() as server:
        server.publish(REPO, {"a.gguf": DATA})
        yield server


@pytest.fixture
def url(hub: HubServer) -> str:
    """The signed address of that file."""
    return hub.address(REPO, "a.gguf")


@pytest.fixture
def client() -> Iterator[RangeClient]:
    """A client as commands use it."""
    with RangeClient() as opened:
        yield opened


def test_a_range_is_read(url: str) -> None:
    """Exactly the bytes asked for come back, fewer at the end of the file."""
    assert read_range(url, 100, 50) == DATA[100:150]
    assert read_range(url, len(DATA) - 10, 50) == DATA[-10:]


@pytest.mark.parametrize(
    "fault",
    [
        Fault("short", after=3),
        Fault("reset", after=3),
        Fault("status", status=503),
        Fault("status", status=429, headers={"Retry-After": "0"}),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_what_may_pass_is_tried_again(
    hub: HubServer, url: str, client: RangeClient, fault: Fault
) -> None:
    """A broken or busy connection is replaced by another and no byte is lost."""
    hub.fail(fault)
    assert client.read(url, 5, 1000) == (DATA[5:1005], len(DATA))
    assert len(hub.data_requests()) == 2


def test_a_silent_connection_is_given_up(hub: HubServer, url: str) -> None:
    """One that says nothing more is replaced by another and no byte is lost."""
    hub.fail(Fault("stall", after=3))
    with RangeClient(read_seconds=0.5) as client:
        assert client.read(url, 5, 1000) == (DATA[5:1005], len(DATA))
    assert len(hub.data_requests()) > 1


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_refusal_is_not_tried_again(hub: HubServer, url: str, status: int) -> None:
    """What will not pass is reported at once, with its status and the host, not the signature."""
    hub.fail(Fault("status", times=None, status=status))
    with pytest.raises(TransferError, match=str(status)) as caught:
        read_range(url, 0, 10)
    assert caught.value.status == status
    assert "Signature" not in str(caught.value)
    assert len(hub.data_requests()) == 1


def test_a_server_without_ranges_is_refused(hub: HubServer, url: str) -> None:
    """A whole file is no part, and is not read to its end."""
    hub.fail(Fault("whole", times=None))
    with pytest.raises(RangesIgnoredError):
        read_range(url, 10, 10)


def test_a_whole_file_that_was_asked_for_will_do(hub: HubServer, url: str) -> None:
    """Where the range covers the file, an answer without range holds just what was wanted."""
    hub.fail(Fault("whole", times=None))
    assert read_range(url, 0, len(DATA) + 10) == DATA
    assert read_range(url, 0, len(DATA)) == DATA
    with pytest.raises(RangesIgnoredError):
        read_range(url, 0, len(DATA) - 1)


def test_a_whole_file_of_another_size_is_refused(
    hub: HubServer, url: str, client: RangeClient
) -> None:
    """A login page in the place of a file is not taken for it."""
    hub.fail(Fault("whole"))
    with (
        pytest.raises(RemoteChangedError, match=f"of {len(DATA) + 1} were asked for"),
        client.open_range(url, 0, len(DATA) + 1, total=len(DATA) + 1),
    ):
        pass


def test_an_empty_file_has_no_range(hub: HubServer, client: RangeClient) -> None:
    """The refusal of any range of it is how a server tells that it is empty."""
    hub.publish("me/empty", {"a.gguf": b""})
    address = hub.address("me/empty", "a.gguf")
    assert client.read(address, 0, 100) == (b"", 0)
    with (
        pytest.raises(RemoteChangedError, match="sent nothing of 0 where bytes 0-99 of 100 were"),
        client.open_range(address, 0, 100, total=100),
    ):
        pass


@pytest.mark.parametrize("kind", ["shifted", "resized"])
def test_other_bytes_than_asked_for_are_refused(
    hub: HubServer, url: str, client: RangeClient, kind: str
) -> None:
    """An answer that holds other bytes, or comes from a file of another size, is not used."""
    hub.fail(Fault(kind))
    with (
        pytest.raises(RemoteChangedError),
        client.open_range(url, 10, 20, total=len(DATA)) as body,
    ):
        b"".join(body.chunks())


def test_nobody_there(client: RangeClient, free_port: int) -> None:
    """A refused connection is told with its host."""
    with (
        pytest.raises(TransferError, match=f"127.0.0.1:{free_port}"),
        client.open_range(f"http://127.0.0.1:{free_port}/x", 0, 1),
    ):
        pass


def test_the_token_stays_with_its_origin(hub: HubServer) -> None:
    """The hub sees the token, the file server that it leads to does not."""
    token = Secret(hub.token)
    hub.private.add(REPO)
    address = f"{hub.root}/{REPO}/resolve/main/a.gguf"

    assert read_range(address, 0, 4, token=token, token_for=hub.root) == DATA[:4]
    read_range(hub.address(REPO, "a.gguf"), 0, 4, token=token, token_for=hub.root)

    seen = [(asked.origin, asked.headers.get("authorization")) for asked in hub.asked]
    assert seen == [("hub", f"Bearer {hub.token}"), ("files", None), ("files", None)]


def test_identity_encoding_is_asked_for(hub: HubServer, url: str) -> None:
    """Packed answers would shift every offset."""
    read_range(url, 0, 1)
    assert hub.asked[0].headers["accept-encoding"] == "identity"


def test_a_remote_file_reads_like_a_local_one(url: str, client: RangeClient) -> None:
    """Reads and seeks over the edges of blocks give what a local file gives."""
    local = io.BytesIO(DATA)
    remote = io.BufferedReader(RemoteFile(client, url, block=700))
    for offset, whence, length in [
        (0, 0, 5),
        (690, 0, 30),
        (-20, 2, 50),
        (3000, 0, 5000),
        (9, 1, 1),
    ]:
        assert remote.seek(offset, whence) == local.seek(offset, whence)
        assert remote.read(length) == local.read(length)
        assert remote.tell() == local.tell()


def test_a_header_is_read_by_ranges(
    hub: HubServer, client: RangeClient, toys: dict[str, Path]
) -> None:
    """The header of a remote GGUF equals that of the local one, and the weights are not fetched."""
    toy = toys["random"]
    hub.publish(REPO, {"t.gguf": toy})
    size = toy.stat().st_size
    with open_remote(client, hub.address(REPO, "t.gguf")) as stream:
        remote = read_header(stream, size=size, path="remote")
    with toy.open("rb") as file:
        assert remote == read_header(file, size=size, path="remote")
    assert hub.served < size


def authority(folder: Path) -> ssl.SSLContext:
    """Make a certificate for 127.0.0.1, in ``certificate.pem``, and return a server's context."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    address = x509.IPAddress(IPv4Address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def test_ranges_come_over_tls(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies that are read past httpx are decrypted, and a certificate nobody signed is refused."""
    hub.use_tls(authority(tmp_path))
    url = hub.address(REPO, "a.gguf")
    assert url.startswith("https://")
    with RangeClient() as client, pytest.raises(TransferError, match=r"(?i)certificate"):
        client.read(url, 0, 10)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    with RangeClient() as client, client.open_range(url, 3, len(DATA)) as body:
        assert b"".join(body.chunks()) == DATA[3:]


class Tunnel(socketserver.StreamRequestHandler):
    """A proxy for TLS: it is told where to, then passes bytes on and reads none of them."""

    asked: ClassVar[list[str]] = []

    def handle(self) -> None:
        """Open the tunnel, and be it."""
        target = self.rfile.readline().decode().split()[1]
        while self.rfile.readline().strip():
            pass
        self.asked.append(target)
        host, _, port = target.rpartition(":")
        with socket.create_connection((host, int(port))) as far:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pass_on, args=(far, self.connection))
            back.start()
            pass_on(self.connection, far)
            back.join()


def pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass bytes on until one side has no more."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def test_ranges_come_through_a_proxys_tunnel(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With HTTPS_PROXY the file server is reached through the proxy, and only it is spoken to."""
    hub.use_tls(authority(tmp_path))
    url = hub.address(REPO, "a.gguf")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name in ("https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_address[1]}")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        with RangeClient() as client, client.open_range(url, 3, len(DATA)) as body:
            assert b"".join(body.chunks()) == DATA[3:]
        proxy.shutdown()
        thread.join()
    assert Tunnel.asked == [url.split("/")[2]]


def test_a_name_that_is_not_found_for_a_moment(
    hub: HubServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that fails twice costs two pauses; one that goes on failing is an error."""
    failures = 2
    real = socket.getaddrinfo

    def lookup(*args: Any, **options: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(*args, **options)

    monkeypatch.setattr("socket.getaddrinfo", lookup)
    monkeypatch.setattr("ggufcluster.adapters.http.ranges.time.sleep", lambda _seconds: None)
    assert read_range(url, 0, 10) == DATA[:10]
    assert failures == 0
    failures = 1000
    with pytest.raises(TransferError, match="name resolution"):
        read_range(url, 0, 10)


def test_ranges_come_over_ipv6() -> None:
    """An address in brackets is one like any other, and the token stays with it."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with HubServer(host="::1") as server:
        server.publish(REPO, {"a.gguf": DATA})
        url = server.address(REPO, "a.gguf")
        token = Secret(server.token)
        assert url.startswith("http://[::1]:")
        assert read_range(url, 5, 10, token=token, token_for=server.root) == DATA[5:15]
        assert "authorization" not in server.asked[0].headers
        assert read_range(url, 5, 10, token=token, token_for=url) == DATA[5:15]
        assert server.asked[1].headers["authorization"] == f"Bearer {server.token}"


def test_a_server_that_asks_to_wait_too_long(hub: HubServer, url: str) -> None:
    """Who has something better to do than to wait is told at once."""
    hub.fail(Fault("status", times=None, status=429, headers={"Retry-After": "3"}))
    said = "answered 429 Too Many Requests, to be asked again in 3.0 s"
    with RangeClient(longest_wait=2.0) as client, pytest.raises(TransferError, match=said):
        client.read(url, 0, 10)
    assert len(hub.data_requests()) == 1


def test_a_chunked_body_goes_through_httpx(hub: HubServer, url: str) -> None:
    """The marks between chunks are not taken for bytes of the file."""
    hub.fail(Fault("chunked"))
    assert read_range(url, 7, 5000) == DATA[7:5007]


def test_a_packed_answer_is_refused(hub: HubServer, url: str) -> None:
    """Bytes of a gzip stream are no bytes of the file."""
    hub.fail(Fault("packed", times=None))
    with pytest.raises(RangesIgnoredError, match="gzip"):
        read_range(url, 0, 10)


def test_a_file_that_changes_meanwhile_is_noticed(hub: HubServer, client: RangeClient) -> None:
    """Blocks of two versions are never mixed."""
    remote = RemoteFile(client, hub.address(REPO, "a.gguf"), block=100)
    hub.fail(Fault("resized"))
    remote.seek(5000)
    with pytest.raises(RemoteChangedError):
        remote.readinto(memoryview(bytearray(10)))
