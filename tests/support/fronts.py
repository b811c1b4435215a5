"""Fronts of servers for the tests, with a fake SuperLink behind them."""

import hashlib
import http.client
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from spherefed.deployment.certificates import Authority, write_certificate, write_private
from spherefed.deployment.front import front, server_tls
from spherefed.deployment.front_rules import Limits, Rules
from spherefed.deployment.programs import free_port
from spherefed.engines import flower_http
from support.tricks import FLEET, send

HOST = "127.0.0.1"
QUICK = Limits(handshake_seconds=2.0, head_seconds=1.0, body_idle_seconds=1.0, response_seconds=1.0)


def rules(authentic: bool = True) -> Rules:
    return Rules(
        routes=flower_http.node_routes(),
        media_type=flower_http.MEDIA_TYPE,
        request_headers=flower_http.REQUEST_HEADERS,
        response_headers=flower_http.RESPONSE_HEADERS,
        authenticates=lambda _: authentic,
        body_checks={flower_http.PUSH_MESSAGES: flower_http.replies_for_itself},
    )


@dataclass
class FakeSuperLink:
    """An HTTP server that records every request it receives."""

    port: int
    received: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    pause: float = 0.0
    open: int = 0
    """The number of open connections."""


@contextmanager
def fake_superlink() -> Iterator[FakeSuperLink]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            found.open += 1
            super().setup()

        def finish(self) -> None:
            super().finish()
            found.open -= 1

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            body = self.rfile.read(size)
            if len(body) < size:  # the connection ended early: as a real server does, drop the request
                return
            found.received.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            time.sleep(found.pause)
            self.send_response(200)
            self.send_header("Content-Type", "application/protobuf")
            self.send_header("Server-Secret", "inner")
            answer = hashlib.sha256(body).hexdigest().encode() * (20_000 if b"long" in body[:4] else 1)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # these tests close connections early
    found = FakeSuperLink(server.server_address[1])
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
    try:
        yield found
    finally:
        server.shutdown()  # waits for the thread
        server.server_close()


@dataclass
class Front:
    """A running front, the fake SuperLink behind it, and the lines that it logged."""

    address: tuple[str, int]
    tls: ssl.SSLContext
    superlink: FakeSuperLink
    lines: list[str]

    def send(self, raw: bytes) -> bytes:
        return send(self.address, self.tls, raw)

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(*self.address, context=self.tls, timeout=10)


def write_credentials(folder: Path) -> Path:
    """A certificate authority, and a certificate that it signed for this machine."""
    authority = Authority.new("test")
    key, certificate = authority.certify([HOST])
    write_private(folder / "server.key", key)
    write_certificate(folder / "server.crt", certificate)
    write_certificate(folder / "ca.crt", authority.certificate)
    return folder


@contextmanager
def running(credentials: Path, limits: Limits = QUICK, allowed: Rules | None = None) -> Iterator[Front]:
    lines: list[str] = []
    address = (HOST, free_port())
    with (
        fake_superlink() as superlink,
        front(
            address,
            (HOST, superlink.port),
            allowed or rules(),
            tls=server_tls(str(credentials / "server.crt"), str(credentials / "server.key")),
            superlink_tls=None,
            announce=lines.append,
            limits=limits,
        ) as still_runs,
    ):
        yield Front(address, ssl.create_default_context(cafile=str(credentials / "ca.crt")), superlink, lines)
        assert still_runs()


SITE_HEADERS = {"Content-Type": "application/protobuf", "flwr-public-key": "k", "flwr-signature": "s", "Cookie": "c"}


def post(connection: http.client.HTTPSConnection, body: bytes = b"x", path: str = FLEET) -> tuple[int, bytes]:
    connection.request("POST", path, body=body, headers=SITE_HEADERS)
    answer = connection.getresponse()
    return answer.status, answer.read()
