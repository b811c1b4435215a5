"""The rules of the front: which requests it forwards to the SuperLink. Pure functions of one request's head.

Method and target of a request are compared byte by byte with the list of routes, without decoding, normalization or
prefix matching. The forwarded request is built from that list, so path, host, framing and headers of the client never
reach the SuperLink, except for the listed headers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import h11

Headers = Mapping[bytes, bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of the front for one client and for all clients."""

    connections: int = 400
    """Open connections. Each may need a second one to the SuperLink, and processes often may open only 1,024 files."""
    connections_per_address: int = 100
    """Open connections from one IP address; sites behind one router share an address."""
    head: int = 16 * 1024
    """Bytes of request line and headers; Flower's have less than 1 kB."""
    body: int = 32 * 2**20
    """Bytes of a body; Flower sends arrays in parts of 5 MiB."""
    checked_body: int = 2**20
    """Bytes of a body that is checked before it is forwarded, and therefore kept in memory."""
    handshake_seconds: float = 10.0
    """For the TLS handshake."""
    head_seconds: float = 30.0
    """For a complete request head, including the idle time since the last request of the connection."""
    body_idle_seconds: float = 30.0
    """For the next part of a body, in either direction."""
    response_seconds: float = 60.0
    """For the head of the SuperLink's response; SuperNodes wait 30 s."""
    request_seconds: float = 600.0
    """For a request, from its head to the end of the response."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What the front forwards."""

    routes: frozenset[tuple[bytes, bytes]]
    """Method and path."""
    media_type: bytes
    request_headers: frozenset[bytes]
    """Names of the headers to forward, in lower case; the others are dropped."""
    response_headers: frozenset[bytes]
    """The same for the headers of responses."""
    authenticates: Callable[[Headers], bool]
    """Whether these headers prove that the request is from a site."""
    body_checks: Mapping[bytes, Callable[[bytes], bool]]
    """For a path: whether its body may be forwarded. Bodies of other paths are not looked at."""


@dataclass(frozen=True, slots=True)
class RejectedRequest:
    """Why a request is not forwarded. The client gets the status only; the cause is for the log."""

    status: int
    cause: str


def check_request(request: h11.Request, rules: Rules, limits: Limits) -> RejectedRequest | None:
    """The first violated rule, in the order from cheap to expensive checks; None if the request may be forwarded."""
    return next(_violations(request, rules, limits), None)


def _violations(request: h11.Request, rules: Rules, limits: Limits) -> Iterator[RejectedRequest]:
    """In the order of the checks; each check relies on those before it."""
    headers = dict(request.headers)
    if request.http_version != b"1.1":
        yield RejectedRequest(505, "not HTTP/1.1")
    if len(request.target) + sum(len(name) + len(value) for name, value in request.headers) > limits.head:
        yield RejectedRequest(431, "request head too large")
    if (request.method, request.target) not in rules.routes:
        yield RejectedRequest(404, "not a route for sites")
    if len(headers) < len(request.headers):
        yield RejectedRequest(400, "repeated header")
    if {b"transfer-encoding", b"upgrade", b"http2-settings", b"expect", b"trailer"} & headers.keys():
        yield RejectedRequest(400, "unsupported framing or protocol")
    if headers.get(b"connection", b"keep-alive").lower() not in {b"keep-alive", b"close"}:
        yield RejectedRequest(400, "Connection header with other names")
    if headers.get(b"content-type") != rules.media_type or b"content-length" not in headers:
        yield RejectedRequest(400, "not a Flower message")
    if int(headers[b"content-length"]) > (limits.checked_body if request.target in rules.body_checks else limits.body):
        yield RejectedRequest(413, "body too large")
    if not rules.authenticates(headers):
        yield RejectedRequest(401, "no valid signature of a site (unknown key, or wrong clock)")


def request_to_superlink(request: h11.Request, rules: Rules, host: str) -> h11.Request:
    """The request to forward: a route from the list, our Host header, and the headers that Flower reads."""
    (method, path) = next(route for route in rules.routes if route == (request.method, request.target))
    kept = [(name, value) for name, value in request.headers if name in rules.request_headers]
    length = dict(request.headers)[b"content-length"]
    return h11.Request(
        method=method, target=path, headers=[(b"Host", host.encode()), *kept, (b"Content-Length", length)]
    )


def response_to_client(response: h11.Response, rules: Rules) -> h11.Response:
    """The response to forward, with the listed headers only."""
    kept = [(name, value) for name, value in response.headers if name in rules.response_headers]
    return h11.Response(status_code=response.status_code, headers=kept)
