"""Malicious requests to a server's open port, as the bytes to send.

`@HOST@` stands for the server's address, and `@SIGNED@` for the headers with a site's signature: a hostile site sends
them, a client without a key leaves them out.
"""

import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from datetime import datetime

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

FLEET, CONTROL = "/v1/fleet/pull-messages", "/v1/control/list-nodes"
REJECTED = {400, 401, 404, 413, 431, 501, 505}

TARGETS = [
    "/v1/fleet/../control/list-nodes",
    "/v1/fleet/./../control/list-nodes",
    "/v1/fleet/pull-messages/../../control/list-nodes",
    "/v1/fleet/%2e%2e/control/list-nodes",
    "/v1/fleet/%2E%2e/control/list-nodes",
    "/v1/fleet/..%2fcontrol/list-nodes",
    "/v1/fleet%2f..%2fcontrol%2flist-nodes",
    "/v1%2Fcontrol%2Flist-nodes",
    "/v1/%63ontrol/list-nodes",
    "/v1/%2563ontrol/list-nodes",
    "/v1/fleet/%252e%252e/control/list-nodes",
    "/v1/fleet/%c0%ae%c0%ae/control/list-nodes",
    "/v1/fleet/..%ef%bc%8fcontrol/list-nodes",
    "/V1/CONTROL/LIST-NODES",
    "/v1/Control/list-nodes",
    "/v1/FLEET/pull-messages",
    "//v1/control/list-nodes",
    "/v1//control/list-nodes",
    "/v1/fleet//pull-messages",
    "/./v1/control/list-nodes",
    "v1/control/list-nodes",
    "/v1/fleet/..;/control/list-nodes",
    "/v1/fleet;/../control/list-nodes",
    "/v1/control;x=/v1/fleet/pull-messages/list-nodes",
    "/v1/fleet/pull-messages;x=1",
    "/v1/control/list-nodes.",
    "/v1/fleet/pull-messages.",
    "/v1/fleet/pull-messages/",
    "/v1/fleet",
    "/v1/fleet/",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/pull-messages?",
    "/v1/fleet/pull-messages?next=/v1/control/list-nodes",
    "/v1/control/list-nodes?x=/v1/fleet/pull-messages",
    "/v1/control/list-nodes#/v1/fleet/pull-messages",
    "/v1/fleet/pull-messages#/../control/list-nodes",
    "\\v1\\control\\list-nodes",
    "/v1/fleet/..\\control\\list-nodes",
    "/v1/fleet/%5c..%5ccontrol/list-nodes",
    "/v1/control/list-nodes%00/v1/fleet/pull-messages",
    "/v1/fleet/pull-messages%20",
    "/v1/fleet/pull-messages%0d%0aX:%20y",
    "http://127.0.0.1/v1/control/list-nodes",
    "https://@HOST@/v1/control/list-nodes",
    "https://@HOST@/v1/fleet/pull-messages",
    "http://127.0.0.1@evil/v1/control/list-nodes",
    "127.0.0.1:80",
    "*",
    "/",
    "/health",
    "/docs",
    "/openapi.json",
    "/responses",
    "/v1/runtime/responses",
    "/flwr.proto.Control/StartRun",
]
METHODS = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post", "PROPFIND", "POST2"]
HEADERS = {
    "an original URL": "X-Original-URL: /v1/fleet/pull-messages",
    "a rewritten URL": "X-Rewrite-URL: /v1/fleet/pull-messages",
    "a forwarded host": "X-Forwarded-Host: localhost\r\nX-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1",
    "an operator's token": "Authorization: Bearer x\r\nflwr-task-token: x",
}
FRAMINGS = {
    "length and chunks": "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks": "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown encoding": "Content-Length: 4\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks after a space": "Content-Length: 4\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "chunks twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "two lengths": "Content-Length: 4\r\nContent-Length: 0\r\n\r\nabcd",
    "a list of lengths": "Content-Length: 4, 0\r\n\r\nabcd",
    "a signed length": "Content-Length: +4\r\n\r\nabcd",
    "a negative length": "Content-Length: -4\r\n\r\nabcd",
    "a length in hexadecimal": "Content-Length: 0x4\r\n\r\nabcd",
    "no length": "\r\n",
    "a length of very many digits": f"Content-Length: {'9' * 40}\r\n\r\nabcd",
    "too long a body": f"Content-Length: {2**40}\r\n\r\nabcd",
    "a second host": "Host: localhost\r\nContent-Length: 0\r\n\r\n",
    "a second type": "Content-Type: application/json\r\nContent-Length: 0\r\n\r\n",
    "the same type twice": "Content-Type: application/protobuf\r\nContent-Length: 0\r\n\r\n",
    "two signatures": "flwr-signature: x\r\nflwr-signature: y\r\nContent-Length: 0\r\n\r\n",
    "a header of NUL": "X: \0\r\nContent-Length: 0\r\n\r\n",
    "a header without a name": ": x\r\nContent-Length: 0\r\n\r\n",
    "a carriage return in a header": "X: a\rb: c\r\nContent-Length: 0\r\n\r\n",
    "too long a header": f"X: {'x' * 20_000}\r\nContent-Length: 0\r\n\r\n",
    "too many headers": "".join(f"X-{n}: {n:0500}\r\n" for n in range(40)) + "Content-Length: 0\r\n\r\n",
    "a websocket": "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
    "eHh4eHh4eHh4eHh4eHh4eA==\r\nContent-Length: 0\r\n\r\n",
    "HTTP/2 by upgrade": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    "Content-Length: 0\r\n\r\n",
    "a pseudo-header": f":path: {CONTROL}\r\nContent-Length: 0\r\n\r\n",
    "an expected 100": "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n",
    "a signature named as hop by hop": "Connection: close, flwr-signature\r\nContent-Length: 0\r\n\r\n",
}


FORBIDDEN_PATHS = sorted(path for _, path in PROTOBUF_REQUEST_TYPES if not path.startswith("/v1/fleet/"))
"""Flower's control and runtime routes."""


def tricks() -> dict[str, bytes]:
    """All malicious requests, by name."""
    found = {f"POST {path}": _post(path) for path in [*FORBIDDEN_PATHS, *TARGETS]}
    found |= {f"{method} {FLEET}": _post(FLEET, method=method) for method in METHODS}
    found |= {f"GET {path}": _post(path, method="GET") for path in (CONTROL, "/health", "/docs", "/openapi.json")}
    found |= {name: _post(CONTROL, more=header + "\r\n") for name, header in HEADERS.items()}
    head = f"POST {FLEET} HTTP/1.1\r\nHost: @HOST@\r\n@SIGNED@Content-Type: application/protobuf\r\n"
    found |= {name: (head + rest).encode("latin-1") for name, rest in FRAMINGS.items()}
    found |= {
        "another type": _post(FLEET).replace(b"application/protobuf", b"application/json"),
        "no host": _post(FLEET).replace(b"Host: @HOST@\r\n", b""),
        "another host": _post(CONTROL).replace(b"@HOST@", b"localhost"),
        "a host with a path": _post(CONTROL).replace(b"Host: @HOST@", b"Host: x/v1/fleet/pull-messages?"),
        "HTTP/1.0": _post(FLEET).replace(b"HTTP/1.1", b"HTTP/1.0"),
        "HTTP/0.9": f"GET {CONTROL}\r\n\r\n".encode(),
        "HTTP/3.0 by name": _post(FLEET).replace(b"HTTP/1.1", b"HTTP/3.0"),
        "HTTP/2 at once": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        "two spaces": _post(FLEET).replace(b"POST /", b"POST  /"),
        "a tab": _post(FLEET).replace(b"POST /", b"POST\t/"),
        "a line feed in the target": _post(f"{FLEET}\n{CONTROL}"),
        "a request within a request": _post(f"{FLEET} HTTP/1.1\r\nX: y\r\n\r\nPOST {CONTROL}"),
        "noise": bytes(range(256)) * 8,
        "gRPC in name": _post("/flwr.proto.Control/ListRuns").replace(b"application/protobuf", b"application/grpc"),
    }
    return found


def _post(target: str, method: str = "POST", more: str = "") -> bytes:
    fixed = "Content-Type: application/protobuf\r\nAccept: application/protobuf\r\nContent-Length: 0\r\n"
    return f"{method} {target} HTTP/1.1\r\nHost: @HOST@\r\n@SIGNED@{more}{fixed}\r\n".encode("latin-1")


def site_request() -> bytes:
    """A regular request of a site."""
    return _post(FLEET, more="Connection: close\r\n")


def signature_headers(
    key: ec.EllipticCurvePrivateKey, at: datetime, *, sign: bytes | None = None
) -> dict[bytes, bytes]:
    """The headers with a site's signature, written without Flower's own code."""
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    stamp = at.isoformat().encode()
    signature = key.sign(sign or stamp, ec.ECDSA(hashes.SHA256()))
    return {
        b"flwr-public-key": b64encode(pem),
        b"flwr-timestamp": stamp,
        b"flwr-signature": b64encode(signature),
    }


def header_lines(headers: dict[bytes, bytes]) -> bytes:
    return b"".join(name + b": " + value + b"\r\n" for name, value in headers.items())


def send(address: tuple[str, int], tls: ssl.SSLContext | None, raw: bytes, signed: bytes = b"") -> bytes:
    """Send bytes on a new connection; return what comes back until it is a rejection or the server closes."""
    raw = raw.replace(b"@HOST@", f"{address[0]}:{address[1]}".encode()).replace(b"@SIGNED@", signed)
    answer = b""
    with socket.create_connection(address, timeout=5) as plain, suppress(OSError):
        connection = tls.wrap_socket(plain, server_hostname=address[0]) if tls else plain
        with connection:
            connection.sendall(raw)
            while not rejected(answer) and (piece := connection.recv(65536)):
                answer += piece
    return answer


def status(answer: bytes) -> int:
    """The status of the first response; 0 if the server closed the connection without one."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def rejected(answer: bytes) -> bool:
    """Whether this is one of the front's own rejections, which have no body."""
    head = b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    return status(answer) in REJECTED and answer.endswith(head) and answer.count(b"\r\n") == 4
